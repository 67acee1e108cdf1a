"""Gates against timm's, against the papers' equations in a loop, and what a fresh one does."""

import pytest
import torch
from timm.layers import EcaModule, SEModule
from timm.layers.cbam import CbamModule, ChannelAttn, SpatialAttn
from torch import nn

from mha_apps.cnn.convert import from_timm
from mha_apps.cnn.gates import CBAM, ChannelAttention, EfficientChannelAttention, SqueezeExcitation
from mha_apps.cnn.self_attention import ChannelSelfAttention, SpatialSelfAttention
from mha_apps.cnn.surgery import GATES, make_gate
from mha_apps.errors import InputError

TWINS = {
    "se": lambda: SEModule(64),
    "se without bias": lambda: SEModule(48, rd_ratio=0.25, bias=False),
    "eca": lambda: EcaModule(64),
    "eca of one channel width": lambda: EcaModule(512),
    "cbam": lambda: CbamModule(64),
    "cbam with a small kernel": lambda: CbamModule(32, spatial_kernel_size=3, mlp_bias=True),
    "channel": lambda: ChannelAttn(64),
    "spatial": lambda: SpatialAttn(5),
}
CHANNELS = {"se without bias": 48, "eca of one channel width": 512, "cbam with a small kernel": 32}
every_gate = pytest.mark.parametrize("name", GATES)


def maps(channels: int = 64, size: int = 9, batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, size, size + 2, generator=torch.Generator().manual_seed(channels))


@pytest.mark.parametrize("name", TWINS)
def test_standard_gates_equal_timms_in_output_and_gradient(name):
    torch.manual_seed(0)
    theirs = TWINS[name]()
    for buffer in theirs.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)  # running statistics that are not those of a fresh batch norm
    ours = from_timm(theirs)
    for training in (False, True):
        theirs.train(training)
        ours.train(training)
        one = maps(CHANNELS.get(name, 64)).requires_grad_()
        other = one.detach().clone().requires_grad_()
        expected, result = theirs(one), ours(other)
        # Both are sums of the same few hundred products in float32, in another order.
        torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-6)
        expected.square().sum().backward()
        result.square().sum().backward()
        torch.testing.assert_close(other.grad, one.grad, atol=1e-5, rtol=1e-5)


def test_gates_of_timm_without_a_twin_are_refused():
    with pytest.raises(ValueError, match="Hardsigmoid"):
        from_timm(SEModule(16, gate_layer="hard_sigmoid"))
    with pytest.raises(ValueError, match="max pooling"):
        from_timm(SEModule(16, add_maxpool=True))
    with pytest.raises(ValueError, match="Conv2d is none"):
        from_timm(nn.Conv2d(1, 1, 1))


def test_cbam_follows_the_papers_equations():
    gate, x = CBAM(32, hidden=8, kernel_size=3), maps(32, 5, 2)
    weight1, weight2 = gate.channel.fc1.weight, gate.channel.fc2.weight
    padded_kernel = gate.spatial.conv.weight[0]
    for image, result in zip(x, gate(x), strict=True):
        average = torch.stack([plane.mean() for plane in image])
        largest = torch.stack([plane.max() for plane in image])
        scores = weight2 @ (weight1 @ average).relu() + weight2 @ (weight1 @ largest).relu()
        image = image / (1 + (-scores).exp())[:, None, None]
        stack = torch.stack([image.mean(0), image.max(0).values])
        padded = torch.nn.functional.pad(stack, (1, 1, 1, 1))
        for row in range(image.shape[1]):
            for column in range(image.shape[2]):
                score = (padded[:, row : row + 3, column : column + 3] * padded_kernel).sum()
                expected = image[:, row, column] / (1 + (-score).exp())
                torch.testing.assert_close(result[:, row, column], expected, atol=1e-5, rtol=1e-5)


def test_eca_sees_only_neighbouring_channels():
    gate = EfficientChannelAttention(64)
    x = maps()
    changed = x.clone()
    changed[:, 20] += 1
    moved = (gate.weights(x) - gate.weights(changed)).abs().amax(0) > 0
    reach = gate.conv.kernel_size[0] // 2
    assert moved.nonzero().flatten().tolist() == list(range(20 - reach, 20 + reach + 1))


@pytest.mark.parametrize(("channels", "size"), [(16, 3), (64, 3), (128, 5), (256, 5), (512, 5), (2048, 7)])
def test_ecas_kernel_is_the_papers(channels, size):
    # Wang et al., eq. 12 with gamma 2 and b 1, as their published code rounds it: down, then up to the next odd.
    expected = EcaModule(channels).conv.kernel_size[0]
    assert EfficientChannelAttention(channels).conv.kernel_size[0] == expected == size


@pytest.mark.parametrize("size", [(7, 7), (5, 9), (14, 20), (1, 1)])
def test_spatial_self_attention_is_attention_inside_each_window(size):
    torch.manual_seed(0)
    gate = SpatialSelfAttention(24, window=4)
    x = torch.randn(2, 24, *size)
    result = gate(x)
    attention, table = gate.attention, gate.attention.position.table
    for top in range(0, size[0], 4):
        for left in range(0, size[1], 4):
            window = x[:, :, top : top + 4, left : left + 4]
            height, width = window.shape[2:]
            tokens = gate.norm(window.flatten(2).transpose(1, 2))
            q, k, v = (layer(tokens) for layer in (attention.query, attention.key, attention.value))
            scores = q @ k.transpose(1, 2) / 16**0.5
            for i in range(height * width):
                for j in range(height * width):
                    rows, columns = j // width - i // width, j % width - i % width
                    scores[:, i, j] += table[0, (rows + 3) * 7 + columns + 3]
            expected = attention.output(scores.softmax(-1) @ v).transpose(1, 2).reshape(window.shape)
            torch.testing.assert_close(result[:, :, top : top + 4, left : left + 4], window + expected)


def test_channel_self_attention_is_cross_covariance_attention():
    torch.manual_seed(0)
    gate = ChannelSelfAttention(32, heads=2)
    with torch.no_grad():
        gate.temperature.copy_(torch.tensor([3.0, 0.5]).view(2, 1, 1))
    x = torch.randn(1, 32, 5, 6)
    tokens = gate.norm(x[0].flatten(1).T)
    q, k, v = gate.projection(tokens).chunk(3, dim=1)
    heads = []
    for head, temperature in enumerate((3.0, 0.5)):
        part = slice(16 * head, 16 * head + 16)
        unit_q, unit_k = q[:, part] / q[:, part].norm(dim=0), k[:, part] / k[:, part].norm(dim=0)
        heads.append(v[:, part] @ (unit_q.T @ unit_k * temperature).softmax(-1).T)
    expected = x[0] + gate.output(torch.cat(heads, 1)).T.reshape(32, 5, 6)
    torch.testing.assert_close(gate(x)[0], expected)


@every_gate
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_identity_gate_changes_no_bit(name, dtype):
    gate = make_gate(name, 24, start="identity").to(dtype)
    x = (maps(24) * 100).to(dtype)
    for training in (False, True):
        assert torch.equal(gate.train(training)(x), x)


@every_gate
def test_a_step_moves_the_last_layer_of_an_identity_gate(name):
    torch.manual_seed(0)
    gate = make_gate(name, 24, start="identity")
    optimizer = torch.optim.SGD(gate.parameters(), lr=0.1)
    before = [parameter.clone() for parameter in gate.last_layer.parameters()]
    x = maps(24)
    (gate(x) * torch.linspace(-1, 1, x.numel()).reshape(x.shape)).sum().backward()
    optimizer.step()
    for old, new in zip(before, gate.last_layer.parameters(), strict=True):
        assert not torch.equal(old, new)


@every_gate
@pytest.mark.parametrize("start", ["standard", "identity"])
def test_a_gate_trains_on_one_image_of_one_place(name, start):
    gate = make_gate(name, 16, start=start).train()
    x = torch.randn(1, 16, 1, 1, requires_grad=True)
    gate(x).sum().backward()
    assert torch.isfinite(x.grad).all()


@every_gate
def test_channels_last_stays_channels_last(name):
    x = maps().contiguous(memory_format=torch.channels_last)
    assert make_gate(name, 64)(x).is_contiguous(memory_format=torch.channels_last)


@every_gate
def test_backward_is_deterministic(name):
    torch.use_deterministic_algorithms(True)
    try:
        gradients = []
        for _ in range(2):
            torch.manual_seed(0)
            gate = make_gate(name, 32)
            x = maps(32).round().requires_grad_()  # many ties among the maxima
            gate(x).square().sum().backward()
            gradients.append([x.grad, *(parameter.grad for parameter in gate.parameters())])
        assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@every_gate
def test_options_make_the_same_gate_again(name):
    gate = make_gate(name, 40, start="identity")
    again = make_gate(name, 40, **gate.options())
    again.load_state_dict(gate.state_dict())
    assert torch.equal(gate(maps(40)), again(maps(40)))


@pytest.mark.parametrize("gate", [SqueezeExcitation, ChannelAttention, CBAM])
def test_bottlenecks_are_eight_wide_at_least_unless_asked(gate):
    def width(channels, **options):
        module = gate(channels, **options)
        return getattr(module, "channel", module).fc1.out_features

    assert [width(c) for c in (3, 16, 64, 128, 256)] == [8, 8, 8, 8, 16]
    assert width(64, reduction=4) == 16
    assert width(64, hidden=2) == 2


def test_wrong_arguments_are_refused_with_their_value():
    with pytest.raises(ValueError, match="start='random'"):
        SqueezeExcitation(8, start="random")
    with pytest.raises(ValueError, match="kernel_size=4"):
        EfficientChannelAttention(8, kernel_size=4)
    with pytest.raises(ValueError, match="channels=0"):
        CBAM(0)
    with pytest.raises(ValueError, match="reduction=0"):
        CBAM(8, reduction=0)
    with pytest.raises(InputError, match="'cbma' is unknown; use one of se, eca, cbam"):
        make_gate("cbma", 8)
    with pytest.raises(InputError, match=r"gate 'eca'.*reduction"):
        make_gate("eca", 8, reduction=4)
