"""Compiled and exported modules give what eager ones give, at lengths that they were not traced with."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mha_apps.attention import (
    Causal,
    Dense,
    Dilated,
    Global,
    Mask,
    MultiHeadAttention,
    Padding,
    PerHead,
    RelativeBias,
    Rotary,
    Segments,
    Strided,
    Window,
    Window2d,
)
from mha_apps.attention.compiled import decode, encode


class Masked(nn.Module):
    """Attention whose mask is made inside the graph."""

    def __init__(self, kind: str, kernel: str = "auto", **options) -> None:
        super().__init__()
        self.kind = kind
        self.attention = MultiHeadAttention(32, 4, kv_heads=2, kernel=kernel, **options)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = {
            "self": lambda: None,
            "causal": Causal,
            "padded": lambda: Padding(lengths),
            "windowed": lambda: (Window(3, 2) | Global([0])) & Padding(lengths),
            "per head": lambda: PerHead([Window(2, 2), Strided(3)]),
        }[self.kind]()
        return self.attention(x, mask=mask)


def check_compiled(module: Masked, backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=backend)
    for length in (20, 33, 47):
        x, lengths = torch.randn(2, length, 32), torch.tensor([length, length // 2])
        results = []
        for run in (module, compiled):
            leaf = x.clone().requires_grad_()
            torch.manual_seed(0)
            out = run(leaf, lengths)
            results.append([out, *torch.autograd.grad(out.square().sum(), [leaf, *module.parameters()])])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert torch._dynamo.utils.counters["graph_break"].total() == 0


def test_the_tiled_kernel_compiles_whole_at_any_length() -> None:
    check_compiled(Masked("windowed", "banded", position=RelativeBias(4, max_distance=5)), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded", "auto"])
@pytest.mark.parametrize("kind", ["self", "causal", "padded", "windowed", "per head"])
def test_every_kernel_compiles_whole_at_any_length(kind: str, kernel: str) -> None:
    check_compiled(Masked(kind, kernel, position=Rotary()), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["sdpa", "banded"])
def test_the_code_of_the_compiler_gives_the_same(kernel: str) -> None:
    check_compiled(Masked("windowed", kernel), "inductor")


MADE_OF_TENSORS: dict[str, Callable[[int], Tensor | Mask]] = {
    "float": lambda length: torch.zeros(length, length).masked_fill(torch.arange(length) > 5, -torch.inf),
    "groups and heads": lambda length: (
        PerHead([Window(2, 2), Strided(3)]) & Dense(torch.rand(2, 4, length, length) < 0.5)
    ),
}


@pytest.mark.parametrize("kind", ["float", pytest.param("groups and heads", marks=pytest.mark.slow)])
def test_masks_made_of_tensors_compile_whole_at_any_length(kind: str) -> None:
    torch._dynamo.reset()
    attention = MultiHeadAttention(32, 4, kv_heads=2)
    compiled = torch.compile(lambda x, m: attention(x, mask=m), fullgraph=True, dynamic=True, backend="eager")
    for length in (9, 12):
        x, mask = torch.randn(2, length, 32), MADE_OF_TENSORS[kind](length)
        if isinstance(mask, Tensor):
            x[:, 6:] = torch.nan
        torch.testing.assert_close(compiled(x, mask), attention(x, mask=mask))


def test_a_mask_survives_the_way_through_an_operator() -> None:
    mask = PerHead(
        [
            (Window(1, 2) | Global([0, 3])) & Padding(torch.tensor([9, 5])),
            ~Strided(2) & Causal() & Dense(torch.rand(9, 9) < 0.5),
            Dilated(2, 2) & Segments(torch.arange(9).expand(2, 9) // 4),
            Window2d(3, 3, 2, 2, 1),
        ]
    )
    program, tensors, _ = encode(mask, [])
    back, _ = decode(program, tensors, [])
    assert back is not None
    assert torch.equal(back.materialize(9, 9), mask.materialize(9, 9))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["self", "causal", "padded", "windowed"])
def test_an_onnx_graph_runs_at_any_batch_and_length(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra 'export'")
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra 'export'")
    module = Masked(kind, position=Rotary()).eval()
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=2)
    shapes = {"x": {0: batch, 1: length}, "lengths": {0: batch}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = torch.randn(2, 10, 32), torch.tensor([10, 4])
        program = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=shapes, verbose=False)
    program.save(tmp_path / "attention.onnx")
    session = runtime.InferenceSession(tmp_path / "attention.onnx")
    for samples, tokens in ((2, 10), (3, 7), (1, 33)):
        x, lengths = torch.randn(samples, tokens, 32), torch.randint(0, tokens + 1, (samples,))
        values = {"x": x.numpy(), "lengths": lengths.numpy()}
        feed = {entry.name: values[entry.name] for entry in session.get_inputs()}
        found = torch.from_numpy(session.run(None, feed)[0])
        torch.testing.assert_close(found, module(x, lengths), rtol=0, atol=1e-4)
