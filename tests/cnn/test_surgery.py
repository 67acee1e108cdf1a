"""Putting gates into networks: where they go, what does not change, what is refused."""

import copy
import pickle

import pytest
import timm
import torch
import torchvision
from torch import nn

from mha_apps.cnn.gates import Gate
from mha_apps.cnn.models import CifarResNet, backbone
from mha_apps.cnn.places import choose
from mha_apps.cnn.surgery import CHILD, GATES, apply_gate, find_gates, gate_parameters, observe, plug, rearm, unplug
from mha_apps.cnn.verify import CHECKS, check_insertion, outputs
from mha_apps.errors import InputError

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def resnet18():
    torch.manual_seed(0)
    return torchvision.models.resnet18()


def awake(model: nn.Module) -> nn.Module:
    """The model with small random numbers added to all weights: none is zero, as in a network that was trained."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model


def places_of(model: nn.Module, where: str) -> list[str]:
    """Where gates would go, found without any memory for the weights."""
    return list(choose(model, observe(model, None), where, [], CHILD).hosts)


@pytest.mark.parametrize("gate", GATES)
def test_every_promise_holds_for_every_gate_in_a_small_resnet(gate, tmp_path):
    torch.manual_seed(0)
    checks = check_insertion(awake(CifarResNet(8)), gate, IMAGES, folder=str(tmp_path))
    assert checks == dict.fromkeys(CHECKS, True)


# One network of each kind, with the first and the last place that a person would choose.
KINDS = {
    "residual": ("resnet18", "layer1.0.bn2", "layer4.1.bn2", 8),
    "pre-activation": ("timm/resnetv2_50", "stages.0.blocks.0.conv3", "stages.3.blocks.2.conv3", 16),
    "inverted residual": ("mobilenet_v2", "features.3.conv.3", "features.16.conv.3", 10),
    "ConvNeXt, channels last inside": ("convnext_tiny", "features.1.0.block.6", "features.7.2.block.6", 18),
    "ConvNeXt, channels first inside": (
        "timm/convnext_atto",
        "stages.0.blocks.0.mlp.fc2",
        "stages.3.blocks.1.mlp.fc2",
        12,
    ),
    "dense": ("densenet121", "features.relu0", "features.norm5", 5),
    "VGG-like": ("vgg11", "features.1", "features.19", 5),
    "multi-branch": ("googlenet", "conv1", "inception5b", 5),
    "channel shuffle": ("shufflenet_v2_x0_5", "conv1.2", "conv5.2", 4),
    "fire modules": ("squeezenet1_1", "features.1", "features.12", 4),
    "norm-free": ("timm/nfnet_f0", "stages.0.0.attn_last", "stages.3.2.attn_last", 12),
}


@pytest.mark.parametrize("kind", KINDS)
def test_auto_finds_the_ends_of_branches_or_of_stages(kind):
    name, first, last, count = KINDS[kind]
    with torch.device("meta"):
        model = backbone(name, classes=1000)
    paths = places_of(model, "auto")
    assert (paths[0], paths[-1], len(paths)) == (first, last, count)


def test_the_place_does_not_depend_on_stochastic_depth():
    places = []
    for rate in (0.0, 0.3):
        model = timm.create_model("convnext_atto", drop_path_rate=rate)
        places.append(list(find_gates(plug(model, "se"))))
    assert places[0] == places[1]
    assert not any("drop_path" in path for path in places[0])


def test_the_gate_scales_what_the_host_returns():
    model = resnet18().eval()
    seen = {}
    model.layer2[0].bn2.register_forward_hook(lambda m, i, o: seen.update(plain=o.clone()))
    model(IMAGES)
    plug(model, "se", "layer2.0.bn2", "standard")
    model.layer2[0].bn2.register_forward_hook(lambda m, i, o: seen.update(gated=o.clone()))
    model(IMAGES)
    gate = model.layer2[0].bn2.attention_gate
    torch.testing.assert_close(seen["gated"], seen["plain"] * gate.weights(seen["plain"])[:, :, None, None])


def test_plugging_draws_nothing_from_the_global_random_state():
    model = resnet18()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    plug(model, "cbam")
    assert torch.equal(torch.rand(4), expected)


def test_gates_of_one_seed_are_alike_wherever_else_gates_are():
    one, other = plug(resnet18(), "se", seed=1), plug(resnet18(), "se", "layer4.1.bn2", seed=1)
    weights = [m.layer4[1].bn2.attention_gate.fc1.weight for m in (one, other)]
    assert torch.equal(*weights)
    assert not torch.equal(plug(resnet18(), "se", seed=2).layer4[1].bn2.attention_gate.fc1.weight, weights[0])


def test_plugging_leaves_modes_buffers_and_gradients_alone():
    model = resnet18().train()
    model.layer1.eval()
    modes = {path: module.training for path, module in model.named_modules()}
    state = copy.deepcopy(model.state_dict())
    plug(model, "cbam")
    assert {path: module.training for path, module in model.named_modules() if "gate" not in path} == modes
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    assert model.layer1[0].bn2.attention_gate.training is False
    assert model.layer2[0].bn2.attention_gate.training is True


def test_the_table_counts_what_is_there():
    model = plug(resnet18(), "cbam", example=torch.zeros(1, 3, 64, 64))
    table = model.gates
    assert [(row.path, row.channels, row.height) for row in table][-1] == ("layer4.1.bn2", 512, 2)
    assert table.parameters == sum(p.numel() for p in gate_parameters(model))
    text = str(table)
    assert "layer4.1.bn2" in text
    assert "8 gates, input 3x64x64" in text
    assert f"{table.parameters:,}" in text


# Choosing places


@pytest.mark.parametrize(
    "where",
    [
        "layer4.*.bn2",
        ["layer4.0.bn2", "layer4.1.bn2"],
        lambda path, module: path.startswith("layer4") and path.endswith("bn2"),
    ],
    ids=["glob", "list", "function"],
)
def test_places_by_glob_list_and_function(where):
    assert list(find_gates(plug(resnet18(), "se", where))) == ["layer4.0.bn2", "layer4.1.bn2"]


def test_a_container_stands_for_its_last_module():
    with torch.device("meta"):
        model = torchvision.models.vgg11()
    assert places_of(model, "features") == ["features.20"]
    # A block computes something after its last child, so that it is its own last module.
    assert list(find_gates(plug(resnet18(), "se", "layer3"))) == ["layer3.1"]


def test_a_place_that_is_not_there_lists_the_nearest():
    with pytest.raises(InputError, match=r"'layer4.1.bn3' matches no module.*layer4.1.bn2"):
        plug(resnet18(), "se", "layer4.1.bn3")
    with pytest.raises(InputError, match="none of the 68 modules"):
        plug(resnet18(), "se", lambda path, module: False)


@pytest.mark.parametrize(
    ("where", "reason"),
    [("layer1.0.relu", "runs 2 times"), ("fc", r"returns \(2, 1000\)"), ("", "matches no module")],
)
def test_a_module_that_cannot_host_is_refused_with_the_reason(where, reason):
    with pytest.raises(InputError, match=reason):
        plug(resnet18(), "se", where or "nothing")


@pytest.mark.parametrize("where", [None, [], 3, [3], nn.ReLU()], ids=repr)
def test_what_names_no_place_is_refused_with_what_does(where):
    with pytest.raises(InputError, match=r"where=.* names no place; give 'auto', a glob"):
        plug(CifarResNet(8), "se", where)


def test_auto_in_a_list_is_told_to_stand_alone():
    with pytest.raises(InputError, match=r"where=\['auto', 'layer1.0.bn2'\]: 'auto' .* stands alone"):
        plug(CifarResNet(8), "se", ["auto", "layer1.0.bn2"])


def test_other_matches_of_a_glob_are_used_and_the_rest_is_listed():
    model = plug(resnet18(), "se", "layer4.1.*")
    assert set(find_gates(model)) == {f"layer4.1.{name}" for name in ("conv1", "bn1", "conv2", "bn2")}
    assert any("layer4.1.relu: runs 2 times" in reason for reason in model.gates.skipped)
    assert "not placed: layer4.1.relu" in str(model.gates)


def test_the_same_place_twice_is_refused_and_changes_nothing():
    model = plug(resnet18(), "se", "layer4.*.bn2")
    before = list(model.state_dict())
    with pytest.raises(InputError, match=r"layer4.0.bn2: has a gate already"):
        plug(model, "cbam")
    assert list(model.state_dict()) == before
    plug(model, "cbam", "layer3.*.bn2")
    assert len(find_gates(model)) == len(model.gates) == 4


def test_networks_and_gates_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="no convolution"):
        plug(nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), "se")
    with pytest.raises(InputError, match="'senet' is unknown"):
        plug(resnet18(), "senet")
    with pytest.raises(InputError, match="does not run on an input of shape"):
        plug(resnet18(), "se", example=torch.zeros(1, 5, 32, 32))
    with pytest.raises(InputError, match="found no residual branch"):
        plug(nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), "se")


@pytest.mark.parametrize("options", [{"reduction": 0}, {"start": "zero"}, {"kernel_size": 4}])
def test_options_that_do_not_fit_a_gate_are_refused_as_input(options):
    ((name, value),) = options.items()
    with pytest.raises(InputError, match=f"gate 'cbam': {name}={value!r}"):
        plug(CifarResNet(8), "cbam", **options)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = CifarResNet(8)
        self.condition = nn.Linear(4, 3)

    def forward(self, x, condition):
        return self.net(x + self.condition(condition)[:, :, None, None])


def test_a_model_of_several_inputs_takes_a_tuple():
    model = plug(TwoInputs(), "se", example=(IMAGES, torch.zeros(2, 4)))
    assert [row.path for row in model.gates] == [f"net.layer{i}.0.bn2" for i in (1, 2, 3)]
    assert model.gates.input_shape == tuple(IMAGES.shape)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ((IMAGES, torch.zeros(2, 5)), r"does not run on an input of shape \(2, 3, 32, 32\) and \(2, 5\)"),
        (None, "give an input that it takes, or a tuple of them"),
        ((IMAGES, 3), "give a tensor, or a tuple of tensors"),
        ((), "give a tensor, or a tuple of tensors"),
        ("image", "give a tensor, or a tuple of tensors"),
    ],
    ids=["wrong shape", "none", "a number", "empty", "a text"],
)
def test_inputs_that_the_model_does_not_take_are_told(example, message):
    with pytest.raises(InputError, match=message):
        plug(TwoInputs(), "se", example=example)


def test_a_parallel_wrapper_is_told_to_come_after():
    with pytest.raises(InputError, match=r"wrapped in DataParallel; plug model.module and wrap afterwards"):
        plug(nn.DataParallel(CifarResNet(8)), "se")
    model = nn.Sequential(nn.DataParallel(CifarResNet(8)))
    with pytest.raises(InputError, match=r"plug model.0.module and wrap"):
        plug(model, "se")
    assert not find_gates(model)


def compiled_whole(model):
    return torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def compiled_child(model):
    model.layer1 = torch.compile(model.layer1, backend="eager")
    return model


def compiled_child_in_place(model):
    model.layer2[0].compile(backend="eager")
    return model


def compiled_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model


@pytest.mark.parametrize(
    "compiled", [compiled_whole, compiled_in_place, compiled_child, compiled_child_in_place, compiled_forward]
)
def test_a_model_that_is_compiled_in_whole_or_in_part_is_refused(compiled):
    model = compiled(CifarResNet(8))
    with pytest.raises(InputError, match="is compiled; plug the gates first and compile then"):
        plug(model, "se")
    assert not find_gates(model)


def test_a_model_without_memory_is_refused_and_taken_once_it_has_some():
    with torch.device("meta"):
        model = CifarResNet(8)
    with pytest.raises(InputError, match=r"CifarResNet is on the meta device; give it memory first"):
        plug(model, "se")
    assert not find_gates(model)
    plain = awake(CifarResNet(8)).eval()
    plug(model.to_empty(device="cpu"), "se").load_state_dict(plain.state_dict())
    assert torch.equal(outputs(model, IMAGES), outputs(plain, IMAGES))


@pytest.mark.parametrize("kind", ["child", "buffer", "number", "property"])
def test_a_model_with_gates_of_its_own_keeps_them(kind):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = CifarResNet(8)
            if kind == "child":
                self.gates = nn.ModuleList([nn.Identity()])
            elif kind == "buffer":
                self.register_buffer("gates", torch.ones(1))
            elif kind == "number":
                self.gates = 3

        def forward(self, x):
            return self.net(x)

    if kind == "property":
        Own.gates = property(lambda self: 3)
    model = Own()
    before, own = str(model), model.gates
    with pytest.raises(InputError, match=r"Own has an attribute `gates` of its own.*nn.Sequential\(model\)"):
        plug(model, "se")
    assert (str(model), model.gates) == (before, own)
    assert not any(module._forward_hooks or module._load_state_dict_pre_hooks for module in model.modules())
    assert len(plug(nn.Sequential(model), "se").gates) == len(find_gates(model)) == 3
    unplug(model)
    assert (str(model), model.gates) == (before, own)


def test_a_host_that_cannot_take_its_gate_leaves_the_others_without():
    model = CifarResNet(8)
    model.layer3[0].bn2.attention_gate = 1
    with pytest.raises(InputError, match="has an attribute attention_gate of its own"):
        plug(model, "se")
    assert not find_gates(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_module_that_looks_at_values_is_traced_for_real():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = CifarResNet(8)

        def forward(self, x):
            return self.net(x) if float(x.sum()) < 1e9 else x

    assert len(find_gates(plug(Picky(), "se"))) == 3


# Taking gates out, checkpoints, conversions


def test_unplugging_leaves_nothing_behind():
    model, fresh = resnet18(), resnet18()
    unplug(plug(model, "cbam"))
    assert str(model) == str(fresh)
    assert list(model.state_dict()) == list(fresh.state_dict())
    for (path, module), other in zip(model.named_modules(), fresh.modules(), strict=True):
        assert module.__dict__.keys() == other.__dict__.keys(), path
        assert not module._forward_hooks
        assert not module._load_state_dict_pre_hooks


def test_gates_that_a_part_lost_are_listed_once_after_the_next_plug():
    model = plug(CifarResNet(8), "se")
    unplug(model.layer1)
    assert list(find_gates(model)) == ["layer2.0.bn2", "layer3.0.bn2"]
    plug(model, "eca", "layer1.0.bn2")
    assert sorted((row.path, row.gate) for row in model.gates) == [
        ("layer1.0.bn2", "eca"),
        ("layer2.0.bn2", "se"),
        ("layer3.0.bn2", "se"),
    ]


def test_a_backbone_checkpoint_loads_strictly_before_and_after():
    checkpoint = awake(resnet18()).state_dict()
    before, after = resnet18(), plug(resnet18(), "cbam")
    before.load_state_dict(checkpoint)
    plug(before, "cbam")
    gates = [parameter.clone() for parameter in gate_parameters(after)]
    after.load_state_dict(checkpoint)
    assert torch.equal(outputs(before, IMAGES), outputs(after, IMAGES))
    assert all(torch.equal(a, b) for a, b in zip(gates, gate_parameters(after), strict=True))


def test_it_loads_in_a_larger_model_and_by_assignment_too():
    model = nn.ModuleDict({"first": plug(resnet18(), "se"), "second": nn.Linear(1, 1)})
    state = {key: value for key, value in model.state_dict().items() if "attention_gate" not in key}
    model.load_state_dict(state, assign=True)
    assert len(find_gates(model)) == 8


def test_a_checkpoint_with_some_gates_only_is_an_error():
    model = plug(resnet18(), "se")
    state = model.state_dict()
    del state["layer4.1.bn2.attention_gate.fc2.bias"]
    with pytest.raises(RuntimeError, match=r"Missing.*layer4.1.bn2.attention_gate.fc2.bias"):
        model.load_state_dict(state)
    some = {key: value for key, value in model.state_dict().items() if "layer4.1.bn2.attention_gate" not in key}
    with pytest.raises(RuntimeError, match="Missing"):
        model.load_state_dict(some)


def test_gates_survive_the_conversion_to_synchronised_batch_norm():
    model = plug(awake(resnet18()), "cbam", start="standard").eval()
    expected = outputs(model, IMAGES)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(model.layer1[0].bn2, nn.SyncBatchNorm)
    assert not torch.equal(outputs(model, IMAGES), expected)  # the hooks are gone
    assert rearm(model) == 8
    torch.testing.assert_close(outputs(model, IMAGES), expected)
    assert rearm(model) == 0


def test_plugging_again_rearms_first():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(plug(resnet18(), "se", "layer4.1.bn2"))
    plug(model, "se", "layer3.1.bn2")
    assert apply_gate in model.layer4[1].bn2._forward_hooks.values()


def test_a_pickled_copy_is_independent_of_the_original():
    model = plug(awake(resnet18()), "se", start="standard").eval()
    expected = outputs(model, IMAGES)
    twin = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        for parameter in gate_parameters(model):
            parameter.zero_()
    assert torch.equal(outputs(twin, IMAGES), expected)
    assert all(isinstance(gate, Gate) for gate in find_gates(twin).values())


def test_half_precision_and_devices_are_the_hosts():
    model = plug(resnet18().to(torch.bfloat16), "cbam")
    assert {parameter.dtype for parameter in gate_parameters(model)} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_host_without_weights_gets_a_gate_of_the_type_around_it(dtype):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3)
            self.body = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).to(dtype)

        def forward(self, x):
            return self.body(self.stem(x).to(dtype))

    flat = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).to(dtype)
    for model, host, images in ((flat, "1", IMAGES.to(dtype)), (Mixed(), "body.1", IMAGES)):
        expected = model(images)
        plug(model, "cbam", host)
        assert {parameter.dtype for parameter in gate_parameters(model)} == {dtype}
        assert torch.equal(model(images), expected)
