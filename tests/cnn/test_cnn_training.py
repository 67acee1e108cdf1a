"""The trainer: what a run holds, what depends on the seed alone, what is refused before anything is written."""

import dataclasses
import json
import shutil
import subprocess
import sys
from typing import get_args

import pytest
import torch

from mha_apps.cnn import CnnRecipe, GatedCNN, evaluate, explain, find_gates, load_model, plug_named, train
from mha_apps.cnn.explain import gate_maps, grad_cam, plot_gates
from mha_apps.cnn.models import CifarResNet, backbone
from mha_apps.cnn.recipe import GateName
from mha_apps.cnn.surgery import GATES, gate_parameters
from mha_apps.cnn.train import build
from mha_apps.errors import InputError
from mha_apps.images.classify import classification_task
from mha_apps.images.source import load
from mha_apps.training.run import Run

QUICK = {"model": "resnet8", "epochs": 3, "device": "cpu", "precision": "fp32"}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return train(CnnRecipe(**QUICK), out=tmp_path_factory.mktemp("cnn") / "run")


def test_a_run_learns_the_digits_and_holds_what_it_should(run):
    result = evaluate(run)
    assert result["top1"] > 0.6
    assert result["images"] == sum(figures["support"] for figures in result["per_class"].values())
    assert (result["model"], result["gate"], result["data"], result["split"]) == ("resnet8", "cbam", "digits", "test")
    json.dumps(result)
    names = {path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()}
    assert names >= {
        "config.toml",
        "metrics.jsonl",
        "summary.json",
        "gates.txt",
        "model/model.safetensors",
        "model/config.json",
        "report.html",
        "plots/confusion-test.png",
    }
    assert run.summary()["gates"] == 3
    assert "layer3.0.bn2" in (run.path / "gates.txt").read_text()


def test_the_saved_model_says_which_gates_it_has(run):
    config = json.loads((run.model_dir / "config.json").read_text())
    assert config["gate"] == "cbam"
    assert config["start"] == "identity"
    assert config["where"] == ["layer1.0.bn2", "layer2.0.bn2", "layer3.0.bn2"]
    model = load_model(run)
    assert [row.path for row in model.gates] == config["where"]
    assert any(
        parameter.abs().sum() > 0 for gate in find_gates(model).values() for parameter in [gate.channel.fc2.weight]
    )


def test_networks_of_one_seed_start_alike_whatever_the_gates():
    training = load("digits", "train")
    models = [build(CnnRecipe(gate=gate, model="resnet8"), training) for gate in ("none", "se", "cbam")]
    states = [{k: v for k, v in model.state_dict().items() if "gate" not in k} for model in models]
    for other in states[1:]:
        assert states[0].keys() == other.keys()
        assert all(torch.equal(value, other[key]) for key, value in states[0].items())


def test_another_runs_weights_are_a_start_for_new_gates(run, tmp_path):
    training = load("digits", "train")
    trained = load_model(run).state_dict()
    same = build(CnnRecipe(model="resnet8", gate="cbam", weights=str(run.path)), training).state_dict()
    assert all(torch.equal(same[key], value) for key, value in trained.items())
    other = build(CnnRecipe(model="resnet8", gate="se", weights=str(run.path)), training)
    assert torch.equal(other.backbone.conv1.weight, trained["backbone.conv1.weight"])
    assert all(parameter.abs().sum() == 0 for gate in find_gates(other).values() for parameter in gate.fc2.parameters())
    few = build(CnnRecipe(model="resnet8", gate="cbam", where="layer2.0.bn2", weights=str(run.path)), training)
    assert all(torch.equal(value, trained[key]) for key, value in few.state_dict().items())
    with pytest.raises(InputError, match="its gates have the start identity; give --start identity"):
        build(CnnRecipe(model="resnet8", gate="cbam", start="standard", weights=str(run.path)), training)
    with pytest.raises(InputError, match=r"does not fit resnet8 .* and --reduction of that run"):
        build(CnnRecipe(model="resnet8", gate="cbam", reduction=4, weights=str(run.path)), training)
    with pytest.raises(InputError, match=r"does not fit resnet14"):
        build(CnnRecipe(model="resnet14", weights=str(run.path)), training)
    with pytest.raises(InputError, match="holds no run"):
        build(CnnRecipe(model="resnet8", weights=str(tmp_path)), training)


def test_every_parameter_is_in_one_group_and_gates_learn_at_their_own_rate():
    model = GatedCNN(model="resnet8", classes=["a", "b"], gate="se")
    groups = model.parameter_groups(learning_rate=0.1, weight_decay=0.01, gate_rate=5.0)
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    gates = {id(parameter) for parameter in gate_parameters(model)}
    assert {rate for key, rate in rates.items() if key in gates} == {0.5}
    assert {rate for key, rate in rates.items() if key not in gates} == {0.1}
    for group in groups:
        assert all((parameter.ndim > 1) == (group["weight_decay"] > 0) for parameter in group["params"])


def test_training_mode_brings_back_gates_that_a_conversion_dropped():
    model = GatedCNN(model="resnet8", classes=["a", "b"], gate="cbam", start="standard").eval()
    x = torch.randn(2, 3, 32, 32)
    expected = model(x)
    converted = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    torch.testing.assert_close(converted.train().eval()(x), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "resnet21"}, "model 'resnet21' is unknown; the nearest are"),
        ({"where": "layer9.*"}, "matches no module"),
        ({"data": "missing.parquet"}, "missing.parquet"),
        ({"gate_rate": 0.0}, "--gate-rate"),
        ({"pretrained": True}, "no pretrained weights"),
        ({"pretrained": True, "weights": "run"}, "give one of them"),
        ({"where": " "}, "--where: is empty"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(changes, message, tmp_path):
    with pytest.raises(InputError, match=message):
        train(dataclasses.replace(CnnRecipe(**QUICK), **changes), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_recipe_offers_every_gate_and_needs_no_torch():
    assert set(get_args(GateName)) == {"none", *GATES}
    code = "import sys, mha_apps.cnn, mha_apps.cnn.recipe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_cifar_resnets_have_the_papers_size(depth, millions):
    # He et al. 2016, table 6.
    count = sum(parameter.numel() for parameter in CifarResNet(depth).parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.03)


@pytest.mark.parametrize("name", ["resnet20", "resnet18_3x3", "mobilenet_v3_small", "googlenet", "timm/resnet10t"])
def test_networks_by_name_give_logits_in_training_too(name):
    model = backbone(name, classes=7).train()
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 7)


def test_a_torchvision_network_takes_grey_images_as_three_channels():
    from mha_apps.cnn.models import model_channels

    assert [model_channels(name) for name in ("resnet18", "resnet20", "timm/resnet18")] == [3, None, None]
    with pytest.raises(InputError, match="takes 3 channels"):
        backbone("resnet18", classes=2, channels=1)


def test_a_network_that_asks_for_versions_is_read_back(tmp_path):
    model = GatedCNN(model="mnasnet0_5", classes=["a", "b"], gate="se", image_size=(64, 64)).eval()
    model.save_pretrained(tmp_path)
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(GatedCNN.from_pretrained(tmp_path).eval()(x), model(x))


# Looking at gates


def test_maps_are_what_the_gates_multiply_by():
    model = GatedCNN(model="resnet8", classes=["a", "b"], gate="cbam", start="standard").eval().backbone
    seen = {}
    host = model.layer2[0].bn2
    host.attention_gate.register_forward_hook(lambda m, given, out: seen.update(x=given[0], y=out))
    x = torch.randn(2, 3, 32, 32)
    maps = gate_maps(model, x)["layer2.0.bn2"]
    factors = maps["channel"][:, :, None, None] * maps["spatial"][:, None]
    torch.testing.assert_close(seen["x"] * factors, seen["y"])


@pytest.mark.parametrize("side", ["before", "after"])
def test_grad_cam_equals_its_definition_by_finite_differences(side):
    torch.manual_seed(0)
    options = {"classes": ["a", "b", "c"], "gate": "cbam", "start": "standard"}
    model = GatedCNN(model="resnet8", **options).double().eval().backbone
    x = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    # Where the maps are read and moved: before the gate, or after it in front of what comes next.
    gate = model.layer3[0].bn2.attention_gate
    found = grad_cam(model, x, "layer3.0.bn2", torch.tensor([2]), side=side)[0]

    def score(shift, seen=None):
        def move(tensor):
            if seen is not None:
                seen.append(tensor.detach().clone())
            return tensor + shift[:, None, None]

        if side == "after":
            handle = gate.register_forward_hook(lambda module, given, result: move(result))
        else:
            handle = gate.register_forward_pre_hook(lambda module, given: (move(given[0]),))
        with handle, torch.no_grad():
            return model(x)[0, 2].item()

    seen: list[torch.Tensor] = []
    score(torch.zeros(64), seen)
    steps = torch.eye(64, dtype=torch.float64) * 1e-6
    # Moving a whole channel by e changes the score by e times the sum of its gradient over the places.
    weights = torch.tensor([(score(step) - score(-step)) / 2e-6 / found.numel() for step in steps]).double()
    cam = (weights[:, None, None] * seen[0][0]).sum(0).relu()
    torch.testing.assert_close(found, cam / cam.max(), atol=1e-5, rtol=1e-4)


def test_looking_leaves_the_model_as_it_was(run):
    model = load_model(run).train()
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    images = load("digits", "validation").images[:2]
    figure = plot_gates(model, images, labels=["a", "b"])
    assert len(figure.axes) == 2 * (1 + 3 + 2 + 1) + 3 + 2  # a bar of colours below each column of maps
    for first, second in zip(figure.axes[1:6], figure.axes[8:13], strict=True):
        assert first.images[-1].get_clim() == second.images[-1].get_clim()
    assert [module.training for module in model.modules()] == modes
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_explain_draws_the_gates_of_a_run(run, tmp_path):
    result = explain(run, count=2, out=tmp_path / "gates.png")
    assert (tmp_path / "gates.png").stat().st_size > 10_000
    assert [row["place"] for row in result["gates"]] == ["layer1.0.bn2", "layer2.0.bn2", "layer3.0.bn2"]
    for figures in result["gates"]:
        assert 0 < figures["channel_smallest"] <= figures["channel_mean"] <= figures["channel_largest"] < 2
    json.dumps(result)


def test_there_must_be_gates_to_look_at():
    model = GatedCNN(model="resnet8", classes=["a", "b"], gate="none")
    with pytest.raises(InputError, match="no gates to look at"):
        plot_gates(model, torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    with pytest.raises(InputError, match="layer 'fc' does not return"):
        grad_cam(model.backbone, torch.zeros(1, 3, 32, 32), "fc")
    with pytest.raises(InputError, match="layer 'layer9' is none"):
        grad_cam(model.backbone, torch.zeros(1, 3, 32, 32), "layer9")


# What people hand over


@pytest.mark.parametrize("name", ["gates", "gates.csv", "folder.png"])
def test_a_picture_is_written_where_it_was_asked_for_or_not_at_all(run, tmp_path, name):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=r"--out .*; name the picture to write, such as gates.png"):
        explain(run, count=1, out=tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_the_folder_of_a_picture_is_made(run, tmp_path):
    result = explain(run, count=1, out=tmp_path / "new" / "gates.png")
    assert result["plot"] == str(tmp_path / "new" / "gates.png")
    assert (tmp_path / "new" / "gates.png").read_bytes().startswith(b"\x89PNG")


def test_weights_that_were_cut_short_are_named(run, tmp_path):
    other = Run(shutil.copytree(run.path, tmp_path / "cut"))
    file = other.model_dir / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"model.safetensors: is damaged"):
        build(CnnRecipe(model="resnet8", weights=str(other.path)), load("digits", "train"))


def test_batch_norms_that_see_one_value_are_refused_before_anything_is_written(tmp_path):
    recipe = CnnRecipe(**QUICK | {"model": "resnet18", "batch_size": 2, "accumulate": 2})
    with pytest.raises(InputError, match=r"1 image of 8x8 at a time .* larger --batch-size"):
        train(recipe, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_smallest_batch_that_trains_is_not_refused():
    recipe = CnnRecipe(**QUICK | {"batch_size": 1})
    training = load("digits", "train")
    model = build(recipe, training)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    classification_task(model, training, training, recipe, mean=model.mean, std=model.std)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("resnet8", {"image_size": -4}, r"--image-size -4: must be from 1 to"),
        ("resnet8", {"image_size": 1_000_000}, r"--image-size 1000000: must be from 1 to"),
        ("vit_b_16", {"image_size": 32}, r"'vit_b_16' does not take images of 32x32 \(.*224.*\); set --image-size"),
        ("resnet8", {"out": "file"}, r"--out .*file: is a file or not empty"),
        ("resnet8", {"out": "file/inside"}, r"file/inside: cannot be written"),
        ("resnet8", {"where": "nope"}, r"'nope' matches no module; the nearest are \w+"),
        ("xyzzy", {}, r"model 'xyzzy' is unknown; the nearest are \w+, \w+, \w+, \w+$"),
        ("RESNET18", {}, r"unknown; the nearest are resnet18, "),
    ],
)
def test_plugging_says_what_cannot_be_used(tmp_path, model, changes, message):
    (tmp_path / "file").touch()
    changes = {"image_size": 32} | changes
    if "out" in changes:
        changes["out"] = tmp_path / changes["out"]
    with pytest.raises(InputError, match=message):
        plug_named(model, **changes)
