"""Plugged networks leave Python: ONNX with dynamic batch and size, compiled graphs in one piece, plug by name."""

import pytest
import torch
import torchvision

from mha_apps.cnn import GatedCNN, plug, plug_named
from mha_apps.cnn.models import CifarResNet
from mha_apps.cnn.surgery import GATES
from mha_apps.errors import InputError

every_gate = pytest.mark.parametrize("gate", GATES)


def gated(model: torch.nn.Module, gate: str) -> torch.nn.Module:
    """With `standard` gates and running statistics of some images, so that the gates do something."""
    torch.manual_seed(0)
    model = plug(model, gate, start="standard", example=torch.zeros(1, 3, 64, 64)).train()
    model(torch.randn(4, 3, 64, 64))
    return model.eval()


@pytest.mark.parametrize("gate", [pytest.param(gate, marks=[pytest.mark.slow] * (gate != "cbam")) for gate in GATES])
def test_a_gate_compiles_in_one_graph(gate):
    model, x = gated(CifarResNet(8), gate), torch.randn(2, 3, 32, 32)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.slow
@every_gate
def test_resnet18_compiles_in_one_graph_with_gradients(gate):
    model, x = gated(torchvision.models.resnet18(num_classes=10), gate), torch.randn(2, 3, 64, 64)
    torch._dynamo.reset()
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
@every_gate
def test_resnet18_exports_to_onnx_with_dynamic_batch_and_size(gate, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = gated(torchvision.models.resnet18(num_classes=10), gate)
    shapes = {"batch": torch.export.Dim("batch", min=1), "height": torch.export.Dim("height", min=32)}
    dynamic = ({0: shapes["batch"], 2: shapes["height"], 3: torch.export.Dim("width", min=32)},)
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, (torch.randn(2, 3, 64, 96),), path, dynamo=True, dynamic_shapes=dynamic, verbose=False)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for shape in ((1, 3, 64, 64), (3, 3, 96, 160), (2, 3, 75, 101)):
        x = torch.randn(shape)
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(found), model(x), atol=1e-4, rtol=1e-4)


def test_a_named_network_is_plugged_checked_and_saved(tmp_path):
    result = plug_named("resnet18", "se", image_size=64, out=tmp_path / "net")
    assert result["largest_change"] == 0.0
    assert len(result["gates"]) == 8
    assert result["parameters"] == sum(row["parameters"] for row in result["gates"])
    model = GatedCNN.from_pretrained(tmp_path / "net")
    assert [row.path for row in model.gates] == [row["path"] for row in result["gates"]]
    with pytest.raises(InputError, match="not empty"):
        plug_named("resnet18", "se", image_size=64, out=tmp_path / "net")


def test_globs_with_commas_are_several_places():
    result = plug_named("resnet20", "se", where="layer1.0.bn2, layer3.*.bn2", image_size=32)
    assert [row["path"] for row in result["gates"]] == ["layer1.0.bn2", *(f"layer3.{n}.bn2" for n in range(3))]


def test_a_standard_gate_says_how_much_it_changes():
    assert plug_named("resnet20", "cbam", start="standard", image_size=32)["largest_change"] > 0
