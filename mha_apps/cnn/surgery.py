"""Putting gates into a network, in place, and taking them out again.

A gate becomes a child of its host, the module whose result it scales, and a forward hook calls it. The keys of the
network's own weights do not change, so its checkpoints load before and after. The hook is a plain function that
looks the gate up: it survives copying and pickling.
"""

from __future__ import annotations

import reprlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mha_apps.cnn.dataflow import Flow, trace
from mha_apps.cnn.gates import (
    CBAM,
    ChannelAttention,
    EfficientChannelAttention,
    Gate,
    SpatialAttention,
    SqueezeExcitation,
    Start,
)
from mha_apps.cnn.places import Where, choose
from mha_apps.cnn.self_attention import ChannelSelfAttention, SpatialSelfAttention
from mha_apps.errors import InputError

__all__ = [
    "GATES",
    "GateTable",
    "Placement",
    "apply_gate",
    "find_gates",
    "gate_parameters",
    "make_gate",
    "plug",
    "rearm",
    "unplug",
]

GATES: dict[str, type[Gate]] = {
    gate.name: gate
    for gate in (
        *(SqueezeExcitation, EfficientChannelAttention, CBAM, ChannelAttention, SpatialAttention),
        *(SpatialSelfAttention, ChannelSelfAttention),
    )
}
"""The gates by the names that `plug` and the command line take."""

CHILD = "attention_gate"
"""Name of the child that is the gate of its host."""


MOST_NOTES = 4


@dataclass
class Placement:
    """One gate: where it is, what it is, and what it costs for one image."""

    path: str
    gate: str
    channels: int
    height: int
    width: int
    parameters: int
    macs: int


@dataclass
class GateTable:
    """What `plug` placed where. Prints as a table; `rows` has the numbers, `skipped` what was passed over and why."""

    rows: list[Placement]
    input_shape: tuple[int, ...]
    skipped: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Placement]:
        return iter(self.rows)

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.rows)

    @property
    def macs(self) -> int:
        return sum(row.macs for row in self.rows)

    def __str__(self) -> str:
        size = "x".join(str(n) for n in self.input_shape[1:])
        titles = ("at the output of", "gate", "channels", "resolution", "parameters", "MACs")
        lines = [
            (r.path, r.gate, str(r.channels), f"{r.height}x{r.width}", f"{r.parameters:,}", f"{r.macs:,}")
            for r in self.rows
        ]
        total = (f"{len(self.rows)} gates, input {size}", "", "", "", f"{self.parameters:,}", f"{self.macs:,}")
        widths = [max(len(cell) for cell in column) for column in zip(titles, *lines, total, strict=True)]
        rule = "  ".join("-" * width for width in widths)

        def line(cells: Sequence[str]) -> str:
            left = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
            return "  ".join(left + [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)])

        notes = [f"not placed: {reason}" for reason in self.skipped[:MOST_NOTES]]
        if more := len(self.skipped) - MOST_NOTES:
            notes += [f"not placed: {more} more, see .skipped"] if more > 0 else []
        return "\n".join([line(titles), rule, *(line(cells) for cells in lines), rule, line(total), *notes])


def make_gate(name: str, channels: int, **options: Any) -> Gate:
    """The gate called `name` for this many channels; see the classes for the options.

    Raises:
        InputError: no gate has that name, or the options do not fit it.
    """
    if name not in GATES:
        raise InputError(f"gate {name!r} is unknown; use one of {', '.join(GATES)}")
    try:
        return GATES[name](channels, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"gate {name!r}: {error}") from error


def plug(
    model: nn.Module,
    gate: str = "cbam",
    where: Where = "auto",
    start: Start = "identity",
    *,
    example: Tensor | Sequence[Tensor] | None = None,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """Puts a gate at the end of each residual branch of a CNN, or wherever `where` says. Changes the model in place.

    With `start="identity"` the model computes exactly what it did. `print(model.gates)` shows what was placed where.
    A model that lost its hooks, as a conversion to synchronised batch norm makes it, gets them back first. Compile
    after plugging, not before.

    Args:
        model: any CNN that takes (batch, channels, height, width).
        gate: `se`, `eca`, `cbam`, `channel`, `spatial`, `spatial-self` or `channel-self`.
        where: `auto`, a glob over module paths (`"layer4.*.bn3"`), a list of paths or globs, or a function of
            path and module that says whether the module's output shall be gated.
        start: `identity` for weights that were trained without gates, `standard` as in the papers.
        example: one input, if the model does not take the usual sizes, or a tuple of all its inputs, the image
            first; resolutions and MACs are for this size.
        seed: of the gates' own weights. The global random state is neither read nor changed.
        options: more arguments of the gate, such as `reduction=8`.

    Returns:
        The same model.

    Raises:
        InputError: the model has no convolution or does not run, the gate is unknown, `where` matches nothing or
            a place that has a gate, the model has an attribute `gates`, is compiled or on the meta device; it is left
            as it was.
    """
    _refuse_blind(model)
    if not any(isinstance(m, (nn.Conv2d, nn.LazyConv2d)) for m in model.modules()):
        raise InputError(f"{type(model).__name__} has no convolution; gates are for networks with feature maps")
    _initialised(gate, 8, "", start=start, **options)  # a wrong name or option shows before anything else happens
    before = getattr(model, "gates", None)
    if hasattr(model, "gates") and not isinstance(before, GateTable):
        raise InputError(
            f"{type(model).__name__} has an attribute `gates` of its own, where the table of the gates would go; "
            "rename it, or plug into nn.Sequential(model), which then has the table"
        )
    rearm(model)
    flow = observe(model, example)
    taken = find_gates(model)
    places = choose(model, flow, where, taken, CHILD)
    gates = {
        path: _fitting(model, path, gate, value.shape[1], f"{seed}:{path}", start=start, **options)
        for path, value in places.hosts.items()
    }
    # Nothing raises from here on: a model has all of its new gates, or none.
    for path, module in gates.items():
        host = model.get_submodule(path)
        host.add_module(CHILD, module)
        host.register_forward_hook(apply_gate)
    _guard_checkpoints(model)
    rows = []
    for path, module in gates.items():
        _, channels, height, width = places.hosts[path].shape
        rows.append(Placement(path, gate, channels, height, width, _count(module), module.macs(height, width)))
    kept = [row for row in before.rows if row.path in taken] if isinstance(before, GateTable) else []
    model.gates = GateTable(kept + rows, flow.input_shape, places.skipped)  # type: ignore[assignment]
    return model


def unplug(model: nn.Module) -> nn.Module:
    """Takes all gates out, in place, and returns the model as it was before `plug`.

    Of a part, as in `unplug(model.layer1)`, it takes that part's: `model.gates` lists them until the next `plug`, while
    `find_gates(model)` knows.
    """
    for module in model.modules():
        if isinstance(module._modules.get(CHILD), Gate):
            del module._modules[CHILD]
            _drop(module._forward_hooks, apply_gate)
        _drop(module._load_state_dict_pre_hooks, accept_backbone_checkpoint)
        if isinstance(module.__dict__.get("gates"), GateTable):
            del module.gates
    return model


def find_gates(model: nn.Module) -> dict[str, Gate]:
    """The gates that were plugged in, by the path of their host."""
    hosts = ((path, module._modules.get(CHILD)) for path, module in model.named_modules())
    return {path: gate for path, gate in hosts if isinstance(gate, Gate)}


def gate_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of all gates, to train them alone or at another learning rate."""
    for gate in find_gates(model).values():
        yield from gate.parameters()


def rearm(model: nn.Module) -> int:
    """Gives hosts that lost the hook of their gate a new one; returns how many.

    `nn.SyncBatchNorm.convert_sync_batchnorm` keeps the children of what it replaces, but not the hooks.
    """
    count = 0
    for path in find_gates(model):
        host = model.get_submodule(path)
        if apply_gate not in host._forward_hooks.values():
            host.register_forward_hook(apply_gate)
            count += 1
    return count


def apply_gate(host: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """The forward hook of a host: what it returned, scaled by its gate."""
    return getattr(host, CHILD)(output)


def accept_backbone_checkpoint(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, *lists: Any
) -> None:
    """Lets a checkpoint without any gate load strictly: the gates then keep their weights.

    One that has some of the gates' weights and lacks others is damaged or of another plugging, and strict loading
    reports it as it reports every missing key.
    """
    own = {
        f"{prefix}{path}.{CHILD}.{name}": tensor
        for path, gate in find_gates(module).items()
        for name, tensor in gate.state_dict(keep_vars=True).items()
    }
    if not any(key in state for key in own):
        state.update(own)


def observe(model: nn.Module, example: Tensor | Sequence[Tensor] | None) -> Flow:
    """The data flow of one pass, on `example` or on the size that such a model usually takes."""
    if example is not None:
        inputs = [example] if isinstance(example, Tensor) else example
        if not isinstance(inputs, (list, tuple)) or not inputs or not all(isinstance(x, Tensor) for x in inputs):
            raise InputError(f"example={reprlib.repr(example)}: give a tensor, or a tuple of tensors, the image first")
        return _traced(model, *inputs)
    first = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    config = getattr(model, "pretrained_cfg", None) or {}
    channels, *size = config.get("input_size") or (first.in_channels, 224, 224)
    sizes = [tuple(size), (224, 224), (256, 256), (299, 299), (64, 64), (32, 32)]
    problem: InputError | None = None
    for height, width in dict.fromkeys(sizes):
        shape = (2, first.in_channels if channels is None else channels, height, width)
        try:
            return _traced(model, torch.zeros(shape, dtype=first.weight.dtype, device=first.weight.device))
        except InputError as error:
            problem = problem or error
    raise InputError(
        f"{problem}; give an input that it takes, or a tuple of them: "
        "plug(model, gate, example=torch.rand(1, 3, 224, 224))"
    )


def _traced(model: nn.Module, *inputs: Tensor) -> Flow:
    try:
        return trace(model, inputs, within=lambda path: path.split(".")[-1] == CHILD)
    except Exception as error:
        shapes = " and ".join(str(tuple(x.shape)) for x in inputs)
        raise InputError(f"{type(model).__name__} does not run on an input of shape {shapes} ({error})") from error


def _refuse_blind(model: nn.Module) -> None:
    """Refuses a model that would take gates but never use them, or lose their weights."""
    name = type(model).__name__
    for path, module in model.named_modules():
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            wrapped = ".".join(filter(None, ("model", path, "module")))
            raise InputError(
                f"{path or 'the model'} is wrapped in {type(module).__name__}; plug {wrapped} and wrap afterwards"
            )
        # Compiled code does not look whether hooks were added. The second is `module.compile()`, the last
        # `module.forward = torch.compile(module.forward)`.
        if (
            "_orig_mod" in module._modules
            or module._compiled_call_impl is not None
            or hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable")
        ):
            raise InputError(f"{path or name} is compiled; plug the gates first and compile then")
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        # `to_empty` would leave the gates without values, and a checkpoint of the backbone has none for them.
        raise InputError(
            f"{name} is on the meta device; give it memory first, model.to_empty(device=...), and plug then"
        )


def _initialised(name: str, channels: int, source: str, **options: Any) -> Gate:
    # From a generator of their own: the rest of the program draws the same numbers with gates and without.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(zlib.crc32(source.encode()))
        return make_gate(name, channels, **options)


def _fitting(model: nn.Module, path: str, name: str, channels: int, source: str, **options: Any) -> Gate:
    """A gate for the host at `path`: in its mode, where the nearest weights are, and of their type."""
    host = model.get_submodule(path)
    if hasattr(host, CHILD):
        raise InputError(f"{path}: {type(host).__name__} has an attribute {CHILD} of its own; name another place")
    gate = _initialised(name, channels, source, **options)
    nearest = _nearest_weights(model, path)
    if nearest is not None:
        gate.to(nearest.device, nearest.dtype)
    return gate.train(host.training)


def _nearest_weights(model: nn.Module, path: str) -> nn.Parameter | None:
    """The first parameter of the module at `path`, else of the one around it, and so on up to the model."""
    parts = path.split(".")
    for length in range(len(parts), -1, -1):
        for parameter in model.get_submodule(".".join(parts[:length])).parameters():
            if parameter.is_floating_point():
                return parameter
    return None


def _guard_checkpoints(model: nn.Module) -> None:
    hooks = model._load_state_dict_pre_hooks.values()
    if all(getattr(hook, "hook", hook) is not accept_backbone_checkpoint for hook in hooks):
        model.register_load_state_dict_pre_hook(accept_backbone_checkpoint)


def _drop(hooks: dict[int, Any], function: Any) -> None:
    for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) is function]:
        del hooks[key]


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
