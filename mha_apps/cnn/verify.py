"""Does a gate go into this network without a trace? The promises of `plug`, checked on one network and one gate."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from collections.abc import Callable

import torch
from safetensors.torch import load_file, save_model
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mha_apps.cnn.places import Where
from mha_apps.cnn.surgery import find_gates, gate_parameters, plug, unplug

__all__ = ["CHECKS", "check_insertion", "outputs"]

CHECKS = ("eval", "train", "keys", "step", "deepcopy", "pickle", "save", "checkpoint", "unplug")


def check_insertion(
    model: nn.Module, gate: str, example: Tensor, *, where: Where = "auto", folder: str | None = None
) -> dict[str, bool]:
    """Plugs a gate into a copy of the model and checks each promise.

    Args:
        model: a network; it is left as it is. Its weights should not be zero where a gate is put, as some libraries
            initialise the last norm of each branch: no gate could learn anything in the first step there.
        gate: name of the gate.
        example: one batch, at least two images.
        where: see `plug`.
        folder: an empty folder, to check saving to safetensors on disk.

    Returns:
        By check: `eval` and `train`, the output is the same to the last bit in that mode; `keys`, the network's own
        keys and their order are the same; `step`, one step of training changes the last layer of every gate;
        `deepcopy`, `pickle` and `save`, what comes back computes the same with the gates trained; `checkpoint`, the
        weights of the bare network load strictly; `unplug`, the bare network computes the same again.

    Raises:
        InputError: see `plug`.
    """
    plain = copy.deepcopy(model)
    before = {mode: outputs(plain, example, training=mode) for mode in (False, True)}
    keys = list(model.state_dict())
    gated = plug(copy.deepcopy(model), gate, where, "identity", example=example)
    result = {
        "eval": torch.equal(outputs(gated, example), before[False]),
        "train": torch.equal(outputs(gated, example, training=True), before[True]),
        "keys": [key for key in gated.state_dict() if ".attention_gate." not in key] == keys,
        "step": _one_step(gated, example),
    }
    after = outputs(gated, example)

    def same(make: Callable[[], nn.Module]) -> bool:
        return torch.equal(outputs(make(), example), after)

    result["deepcopy"] = same(lambda: copy.deepcopy(gated))
    result["pickle"] = same(lambda: _pickled(gated))
    if folder is not None:
        result["save"] = same(lambda: _saved(gated, model, gate, where, example, folder))
    gated.load_state_dict(model.state_dict())
    bare = unplug(gated)
    state = bare.state_dict()
    result["checkpoint"] = all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    result["unplug"] = list(bare.state_dict()) == keys and torch.equal(outputs(bare, example), before[False])
    return result


def outputs(model: nn.Module, example: Tensor, *, training: bool = False) -> Tensor:
    """All that the model returns, in one vector, from the same random state each time."""
    model.train(training)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        result = model(example)
    return torch.cat([leaf.flatten() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)])


def _one_step(model: nn.Module, example: Tensor) -> bool:
    """Whether one step of training changes the last layer of every gate, both of them where a gate has two.

    A bias or a weight of the layer is enough: with all hidden units off for two images, the weight gets no gradient.
    """
    ends = [gate.last_layer for gate in find_gates(model).values()]
    layers = [layer for end in ends for layer in (end if isinstance(end, nn.ModuleList) else [end])]
    before = [copy.deepcopy(layer.state_dict()) for layer in layers]
    optimizer = torch.optim.SGD(gate_parameters(model), lr=0.1)
    model.eval()  # stochastic depth may leave a branch out, and its gate with it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        result = model(example)
        # Untrained networks may give huge numbers, and the step after them none at all.
        result = result / result.detach().abs().amax().clamp_min(1e-12)
        (result * torch.randn_like(result)).sum().backward()
    optimizer.step()
    model.zero_grad(set_to_none=True)
    return all(
        any(not torch.equal(value, old[name]) for name, value in layer.state_dict().items())
        for layer, old in zip(layers, before, strict=True)
    )


def _pickled(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def _saved(gated: nn.Module, bare: nn.Module, gate: str, where: Where, example: Tensor, folder: str) -> nn.Module:
    path = f"{folder}/model.safetensors"
    save_model(gated, path)
    fresh = plug(copy.deepcopy(bare), gate, where, "identity", example=example, seed=1)
    state = OrderedDict(load_file(path))
    # The file has no versions of the modules, on which some of torchvision's networks insist, with gates or without,
    # and one name only for a tensor that has several.
    state._metadata = fresh.state_dict()._metadata  # type: ignore[attr-defined]
    fresh.load_state_dict(state, strict=False)
    return fresh
