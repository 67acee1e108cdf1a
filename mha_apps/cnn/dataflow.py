"""The data flow of a CNN, written down during one forward pass: which module made which tensor, and out of what.

The pass runs on shapes alone (the parameters are replaced by empty ones on PyTorch's `meta` device), so it costs no
arithmetic and changes nothing in the model. `surgery.py` reads the record to find where gates belong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

__all__ = ["Flow", "Value", "evaluation_mode", "trace"]

CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d"})
PRODUCTS = CONVOLUTIONS | {"linear", "matmul", "__matmul__", "bmm", "mm", "addmm", "einsum", "opaque"}
ADDITIONS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
MULTIPLICATIONS = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"})
SPLITS = frozenset({"split", "chunk", "unbind", "tensor_split", "split_with_sizes"})
POOLS = frozenset({f"{kind}_pool2d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max", "lp")})
NONLINEARITIES = frozenset(
    name + ending
    for name in (
        *("relu", "relu6", "prelu", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "clamp"),
        *("sigmoid", "tanh", "hardtanh", "hardswish", "hardsigmoid", "softmax"),
        *("scaled_dot_product_attention", "multi_head_attention_forward"),
    )
    for ending in ("", "_")
)
# Operations that only exist for channels on axis 1, and those that work on the last axis.
CHANNELS_FIRST = CONVOLUTIONS | POOLS | {"batch_norm", "group_norm", "instance_norm", "interpolate", "pixel_shuffle"}
CHANNELS_LAST = frozenset({"linear", "layer_norm", "rms_norm"})


@dataclass(eq=False)
class Value:
    """One tensor of the pass. An in-place operation makes a new value of the same tensor."""

    index: int
    operation: str
    inputs: tuple[Value, ...]
    shape: tuple[int, ...]
    owner: str
    """Path of the innermost module that was running."""
    of_image: bool
    """Whether it depends on the image, rather than on parameters alone."""
    channel_axis: int | None
    outputs_of: list[str] = field(default_factory=list)
    """Paths of the modules that returned it, in the order in which they did."""
    ancestors: int = 0
    """Bit i is set when value i went into this one, or is this one."""

    @property
    def images(self) -> list[Value]:
        """The inputs that depend on the image."""
        return [value for value in self.inputs if value.of_image]

    @property
    def is_map(self) -> bool:
        """Whether this is a feature map (batch, channels, height, width), and not a pooled vector."""
        return len(self.shape) == 4 and self.channel_axis == 1 and self.shape[2] * self.shape[3] > 1

    def comes_from(self, other: Value) -> bool:
        return bool(self.ancestors >> other.index & 1)


@dataclass
class Flow:
    """The record of one pass."""

    values: list[Value]
    outputs: list[Value]
    calls: Counter[str]
    input_shape: tuple[int, ...]

    @property
    def products(self) -> int:
        """Bit i is set when value i is a convolution or another product of the image with a weight."""
        return sum(1 << value.index for value in self.values if is_product(value))

    @property
    def nonlinearities(self) -> int:
        """Bit i is set when value i came out of an activation function."""
        return sum(1 << v.index for v in self.values if v.of_image and v.operation in NONLINEARITIES)

    def returned_by(self, path: str) -> Value | None:
        """What the module at `path` returned, if that was a tensor."""
        return next((value for value in reversed(self.values) if path in value.outputs_of), None)


def is_product(value: Value) -> bool:
    """Whether the image met a weight here."""
    if value.operation == "opaque":
        return value.of_image
    weighted = any(not source.of_image for source in value.inputs)
    return value.of_image and value.operation in PRODUCTS and weighted


def trace(model: nn.Module, example: Tensor | Sequence[Tensor], within: Callable[[str], bool] | None = None) -> Flow:
    """Runs `model` once in evaluation mode, without gradients, and records the data flow.

    Args:
        model: any module that takes a tensor (batch, channels, height, width), or several.
        example: one input, on any device; only its shape and type are looked at, unless the model insists on values.
        within: module paths to treat as one operation each, whatever happens inside.

    Raises:
        Exception: whatever the model raises on such an input.
    """
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    tensors: dict[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    try:
        empty = tuple(torch.empty_like(x, device="meta") for x in inputs)
        return _record(model, empty, shapes, within)
    except (RuntimeError, NotImplementedError, TypeError):
        # Some models look at values, or keep tensors where PyTorch does not know of them: those run for real.
        return _record(model, inputs, tensors, within)


def _record(
    model: nn.Module, inputs: tuple[Tensor, ...], tensors: dict[str, Tensor], within: Callable[[str], bool] | None
) -> Flow:
    recorder = _Recorder(within or (lambda path: False))
    for x in inputs:
        recorder.enter("image", (), x, of_image=True, axis=1)
    with evaluation_mode(model), recorder.watching(model), torch.random.fork_rng(devices=[]), torch.no_grad():
        result = torch.func.functional_call(model, tensors, inputs)
    leaves = result.values() if isinstance(result, dict) else [result]
    found = [recorder.of(leaf) for leaf in tree_leaves(list(leaves)) if isinstance(leaf, Tensor)]
    outputs = [value for value in found if value is not None]
    return Flow(recorder.values, outputs, recorder.calls, tuple(inputs[0].shape))


class _Recorder(TorchFunctionMode):
    """Sees every call of a torch function, and through hooks every call of a module."""

    def __init__(self, within: Callable[[str], bool]) -> None:
        super().__init__()
        self.values: list[Value] = []
        self.calls: Counter[str] = Counter()
        self._within = within
        self._running: list[str] = []
        self._current: dict[int, Value] = {}
        self._alive: list[Any] = []  # a tensor that is freed would give its id to another

    def of(self, tensor: Any) -> Value | None:
        return self._current.get(id(tensor))

    def enter(
        self, operation: str, inputs: Sequence[Value], tensor: Tensor, *, of_image: bool, axis: int | None
    ) -> Value:
        value = Value(
            index=len(self.values),
            operation=operation,
            inputs=tuple(inputs),
            shape=tuple(tensor.shape),
            owner=self._running[-1] if self._running else "",
            of_image=of_image,
            channel_axis=axis,
        )
        value.ancestors = 1 << value.index
        for source in inputs:
            value.ancestors |= source.ancestors
        self.values.append(value)
        self._current[id(tensor)] = value
        self._alive.append(tensor)
        return value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves([args, kwargs]) if isinstance(leaf, Tensor)]
        versions = [tensor._version for tensor in given]
        sources = [self._source(tensor) for tensor in given]
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        changed = [t for t, version in zip(given, versions, strict=True) if t._version != version]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        # An operation that gives back what it was given (dropout in evaluation, `contiguous`) makes nothing new.
        fresh = [tensor for tensor in made if self.of(tensor) is None]
        if not fresh and not changed:
            return result
        images = [value for value in sources if value.of_image]
        if name in CHANNELS_FIRST and images and images[0].channel_axis is None and len(images[0].shape) == 4:
            images[0].channel_axis = 1
        for tensor in {id(t): t for t in [*changed, *fresh]}.values():
            axis = _channel_axis(name, images, tensor, args, kwargs) if images else None
            self.enter(name, sources, tensor, of_image=bool(images), axis=axis)
        return result

    def _source(self, tensor: Tensor) -> Value:
        known = self.of(tensor)
        return known if known is not None else self.enter("constant", (), tensor, of_image=False, axis=None)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for path, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            handles.append(module.register_forward_pre_hook(self._starting(path)))
            handles.append(module.register_forward_hook(self._ending(path), with_kwargs=True))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _starting(self, path: str) -> Callable[..., None]:
        def start(module: nn.Module, inputs: Any) -> None:
            self.calls[path] += 1
            self._running.append(path)

        return start

    def _ending(self, path: str) -> Callable[..., None]:
        def end(module: nn.Module, inputs: Any, kwargs: Any, output: Any) -> None:
            self._running.pop()
            value = self.of(output)
            sealed = isinstance(output, Tensor) and self._within(path)
            if isinstance(output, Tensor) and (value is None or sealed):
                given = [self.of(leaf) for leaf in tree_leaves([inputs, kwargs]) if isinstance(leaf, Tensor)]
                sources = [source for source in given if source is not None]
                images = [source for source in sources if source.of_image]
                axis = _channel_axis("opaque", images, output, (), {}) if images else None
                name = "opaque" if any(True for _ in module.parameters()) else "call"
                self._running.append(path)
                value = self.enter(name, sources, output, of_image=bool(images), axis=axis)
                self._running.pop()
            if value is not None:
                value.outputs_of.append(path)

        return end


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the `with` block, and each module's own mode again after it."""
    # Not model.eval(): a model may override it, and each module's own flag has to come back as it was.
    flags = [(module, module.training) for module in model.modules()]
    for module, _ in flags:
        module.training = False
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


def _channel_axis(name: str, images: list[Value], result: Tensor, args: Any, kwargs: Any) -> int | None:
    """Where the channels of `result` are, or None where that cannot be told."""
    if name in CHANNELS_FIRST:
        return 1
    if name in CHANNELS_LAST:
        return result.ndim - 1
    source = next((value for value in images if len(value.shape) == result.ndim), images[0])
    axis, before, after = source.channel_axis, source.shape, tuple(result.shape)
    if axis is None:
        return None
    if name in ("permute", "transpose", "swapaxes"):
        order = _order(name, len(before), args, kwargs)
        return order.index(axis) if order else None
    if name in ("reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze"):
        last = axis == len(before) - 1
        if last and after[-1:] == before[-1:]:
            return len(after) - 1
        return axis if not last and after[: axis + 1] == before[: axis + 1] else None
    if name in PRODUCTS and name != "opaque":
        return None
    if len(after) != len(before):
        return None
    return axis if axis == 1 or after[1:-1] == before[1:-1] else None


def _order(name: str, ndim: int, args: Any, kwargs: Any) -> list[int] | None:
    """The permutation that a call of permute or transpose asked for."""
    try:
        if name == "permute":
            dims = kwargs.get("dims") or (args[1] if isinstance(args[1], (tuple, list, torch.Size)) else args[1:])
            return [int(dim) % ndim for dim in dims]
        first, second = (int(dim) % ndim for dim in (args[1:3] if len(args) > 2 else (kwargs["dim0"], kwargs["dim1"])))
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    order = list(range(ndim))
    order[first], order[second] = order[second], order[first]
    return order
