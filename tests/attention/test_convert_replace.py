"""replace_attention on PyTorch's own modules: the host before the replacement is the reference."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mha_apps.attention import (
    Causal,
    MultiHeadAttention,
    Window,
    record_attention,
    replace_attention,
)

TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def replaced(model: nn.Module, **options) -> nn.Module:
    model = copy.deepcopy(model)
    replace_attention(model, **options)
    return model


def randomize(model: nn.Module) -> nn.Module:
    """Biases are zero at the start, which would hide those that are lost."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.5)
    return model


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Gradients by the host's names: the state_dict of a copy that holds gradients in place of parameters."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    return {name: tensor for name, tensor in model.state_dict().items() if "running" not in name}


def assert_same_gradients(model: nn.Module, reference: nn.Module) -> None:
    expected = gradients(reference)
    found = gradients(model)
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(found[name], gradient, atol=1e-5 * scale, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@st.composite
def host_calls(draw):
    """A host with its options, inputs in its layout, and the keywords of the call."""
    heads = draw(st.sampled_from([1, 2, 3]))
    kdim, vdim = draw(st.sampled_from([(None, None), (5, None), (5, 7)]))
    torch.manual_seed(draw(st.integers(0, 2**20)))
    batch_first, batched = draw(st.booleans()), draw(st.booleans())
    host = nn.MultiheadAttention(
        6 * heads, heads, bias=draw(st.booleans()), kdim=kdim, vdim=vdim, batch_first=batch_first
    )
    batch = draw(st.integers(1, 3)) if batched else 1
    length, key_length = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    same = kdim is None and draw(st.booleans())
    key_length = length if same else key_length

    def sequence(length: int, dim: int) -> Tensor:
        x = torch.randn(batch, length, dim)
        return (x if batch_first else x.transpose(0, 1)) if batched else x.squeeze(0)

    query = sequence(length, host.embed_dim).requires_grad_()
    key = query if same else sequence(key_length, host.kdim).requires_grad_()
    value = key if vdim is None and host.kdim == host.vdim else sequence(key_length, host.vdim).requires_grad_()
    keywords = {"need_weights": draw(st.booleans()), "average_attn_weights": draw(st.booleans())}
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind != "none":
        first = draw(st.sampled_from([(), (batch * heads,)]))
        forbidden = torch.rand(*first, length, key_length) < 0.3
        forbidden[..., 0] = False  # the host is NaN in rows that see nothing
        keywords["attn_mask"] = torch.randn(forbidden.shape).masked_fill(forbidden, -torch.inf)
        if kind == "bool":
            keywords["attn_mask"] = forbidden
    if draw(st.booleans()):
        padding = torch.rand(batch, key_length) < 0.3
        padding[:, 0] = False
        keywords["key_padding_mask"] = padding if batched else padding.squeeze(0)
    return host, (query, key, value), keywords


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@settings(max_examples=100, deadline=None)
@given(host_calls())
def test_outputs_weights_and_gradients_are_those_of_the_host(call):
    host, inputs, keywords = call
    model = replaced(host)
    results, input_gradients = [], []
    for module in (host, model):
        for x in inputs:
            x.grad = None
        out, weights = module(*inputs, **keywords)
        loss = (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()
        if weights is not None:
            loss = loss + (weights * torch.linspace(0, 1, weights.numel()).view_as(weights)).sum()
        loss.backward()
        results.append((out, weights))
        input_gradients.append([x.grad.clone() for x in inputs])
    (expected, expected_weights), (out, weights) = results
    torch.testing.assert_close(out, expected, **TOLERANCE)
    assert (weights is None) == (expected_weights is None)
    if weights is not None:
        torch.testing.assert_close(weights, expected_weights, **TOLERANCE)
    for found, wanted in zip(input_gradients[1], input_gradients[0], strict=True):
        torch.testing.assert_close(found, wanted, atol=5e-5, rtol=1e-5)
    assert_same_gradients(model, host)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_is_causal_means_what_it_means_to_the_host(batch_first, need_weights, padded):
    host = randomize(nn.MultiheadAttention(12, 3, batch_first=batch_first))
    x = torch.randn(5, 5, 12)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.zeros(5, 5, dtype=torch.bool)
    padding[1, 3:] = True
    keywords = {"attn_mask": mask, "is_causal": True, "need_weights": need_weights}
    keywords |= {"key_padding_mask": torch.zeros(5, 5).masked_fill(padding, -torch.inf)} if padded else {}
    for found, expected in zip(replaced(host)(x, x, x, **keywords), host(x, x, x, **keywords), strict=True):
        if expected is None:
            assert found is None
        else:
            torch.testing.assert_close(found, expected, **TOLERANCE)


@pytest.mark.parametrize(("length", "key_length"), [(4, 4), (3, 5), (5, 3)])
def test_is_causal_needs_no_mask_and_starts_at_the_first_key_as_the_hosts_mask_does(length, key_length):
    host = randomize(nn.MultiheadAttention(12, 3, batch_first=True))
    x, context = torch.randn(2, length, 12), torch.randn(2, key_length, 12)
    mask = torch.ones(length, key_length, dtype=torch.bool).triu(1)
    expected = host(x, context, context, attn_mask=mask)[0]
    out = replaced(host)(x, context, context, is_causal=True)[0]
    torch.testing.assert_close(out, expected, **TOLERANCE)


def test_a_query_that_may_attend_to_nothing_gets_the_projection_of_zero_where_the_host_is_nan():
    host = randomize(nn.MultiheadAttention(12, 3, batch_first=True))
    x = torch.randn(2, 4, 12)
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1] = True
    assert host(x, x, x, attn_mask=mask)[0][:, 1].isnan().all()
    out, weights = replaced(host)(x, x, x, attn_mask=mask)
    torch.testing.assert_close(out[:, 1], host.out_proj.bias.expand(2, -1), **TOLERANCE)
    assert (weights[:, 1] == 0).all()


def test_nan_in_padding_reaches_no_real_position():
    host = randomize(nn.MultiheadAttention(12, 3, batch_first=True))
    x = torch.randn(2, 5, 12)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    expected = host(x, x, x, key_padding_mask=padding)[0][~padding]
    x = x.masked_fill(padding.unsqueeze(-1), float("nan"))
    out = replaced(host)(x, x, x, key_padding_mask=padding)[0][~padding]
    torch.testing.assert_close(out, expected, **TOLERANCE)


def encoder(**options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True, **options)
    return randomize(nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options.get("norm_first", False)))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("masking", ["nothing", "padding", "causal", "both"])
def test_an_encoder_of_pytorch_gives_the_same_in_eval_with_and_without_gradients(norm_first, masking):
    host = encoder(norm_first=norm_first).eval()
    model = replaced(host)
    x = torch.randn(3, 6, 12)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[0, 4:] = padding[1, 2:] = True
    keywords = {"src_key_padding_mask": padding} if masking in ("padding", "both") else {}
    if masking in ("causal", "both"):
        keywords["mask"] = torch.ones(6, 6, dtype=torch.bool).triu(1)
    real = ~padding if "src_key_padding_mask" in keywords else torch.ones_like(padding)
    out, expected = model(x, **keywords), host(x, **keywords)
    torch.testing.assert_close(out, expected, **TOLERANCE)  # the host's slow path: padded positions as well
    for result in (out, expected):
        result[real].square().sum().backward()
    assert_same_gradients(model, host)
    with torch.no_grad(), record_attention(model) as maps:
        out = model(x, **keywords)
    torch.testing.assert_close(out[real], host(x, **keywords)[real], **TOLERANCE)  # its fast path
    assert [weights.shape for weights in maps.values()] == [(3, 2, 6, 6)] * 2  # which did not pass by the core


def test_a_whole_transformer_gives_the_same():
    host = randomize(nn.Transformer(12, 2, 2, 2, 24)).eval()
    model = replaced(host)
    source, target = torch.randn(6, 3, 12), torch.randn(4, 3, 12)
    keywords = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(4),
        "memory_key_padding_mask": torch.arange(6) >= torch.tensor([[6], [3], [5]]),
    }
    torch.testing.assert_close(model(source, target, **keywords), host(source, target, **keywords), **TOLERANCE)


def test_torchvisions_vit_gives_the_same():
    vit = pytest.importorskip("torchvision.models").VisionTransformer(16, 8, 2, 2, 12, 24, num_classes=3)
    host = randomize(vit).eval()
    model = replaced(host)
    x = torch.randn(2, 3, 16, 16)
    with record_attention(model) as maps:
        torch.testing.assert_close(model(x), host(x), **TOLERANCE)
    assert len(maps) == 2


def test_maps_recorded_on_a_replaced_model_are_the_weights_that_the_host_returns():
    host = randomize(nn.MultiheadAttention(12, 3, batch_first=True))
    x = torch.randn(2, 5, 12)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    expected = host(x, x, x, key_padding_mask=padding, average_attn_weights=False)[1]
    model = replaced(host)
    for need_weights in (True, False):
        with record_attention(model) as maps:
            model(x, x, x, key_padding_mask=padding, need_weights=need_weights)
        torch.testing.assert_close(maps["core"], expected, **TOLERANCE)


def test_kernels_and_masks_of_ours_work_in_a_replaced_model():
    host = encoder().eval()
    model = copy.deepcopy(host)
    report = replace_attention(model, mask=Window(2, 1))
    x = torch.randn(2, 9, 12)
    distance = torch.arange(9) - torch.arange(9).unsqueeze(1)
    expected = host(x, mask=(distance < -2) | (distance > 1))
    for kernel in ("auto", "explicit", "sdpa", "banded"):
        for core in report.replaced.values():
            core.kernel = kernel
        torch.testing.assert_close(model(x), expected, **TOLERANCE)
    for layer in model.layers:
        layer.self_attn.mask = None
    torch.testing.assert_close(model(x), host(x), **TOLERANCE)


def test_a_mask_of_ours_joins_with_masks_of_the_host():
    host = randomize(nn.MultiheadAttention(12, 3, batch_first=True))
    x = torch.randn(2, 6, 12)
    forbidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    padding = torch.arange(6) >= torch.tensor([[6], [4]])
    bias = torch.randn(6, 6)
    for theirs in (padding, torch.zeros(2, 6).masked_fill(padding, -torch.inf)):
        expected = host(x, x, x, key_padding_mask=padding, attn_mask=forbidden)[0]
        out = replaced(host)(x, x, x, key_padding_mask=theirs, attn_mask=Causal())[0]
        torch.testing.assert_close(out, expected, **TOLERANCE)
    expected = host(x, x, x, attn_mask=bias.masked_fill(forbidden, -torch.inf))[0]
    torch.testing.assert_close(replaced(host, mask=Causal())(x, x, x, attn_mask=bias)[0], expected, **TOLERANCE)


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_in_training_has_the_mean_and_the_spread_of_the_hosts(need_weights):
    host = randomize(nn.MultiheadAttention(12, 3, dropout=0.4, batch_first=True)).train()
    model = replaced(host)
    samples = 4000
    x = torch.randn(1, 5, 12).expand(samples, -1, -1)
    with torch.no_grad():
        expected, out = (module(x, x, x, need_weights=need_weights)[0] for module in (host, model))
        evaluated = model.eval()(x[:1], x[:1], x[:1])[0]
    spread = expected.std(dim=0)
    assert ((out.mean(dim=0) - evaluated[0]).abs() < 6 * spread / samples**0.5).all()
    # The standard error of a standard deviation is that over sqrt(2 n) for a normal; dropout is not far from one.
    assert ((out.std(dim=0) / spread - 1).abs() < 0.15).all()
    assert torch.equal(model(x[:2], x[:2], x[:2])[0], model(x[:2], x[:2], x[:2])[0])


def test_dropout_follows_the_hosts_field():
    model = replaced(nn.MultiheadAttention(12, 3, dropout=0.4, batch_first=True).train())
    x = torch.randn(2, 5, 12)
    assert not torch.equal(model(x, x, x)[0], model(x, x, x)[0])
    model.dropout = 0.0
    assert torch.equal(model(x, x, x)[0], model(x, x, x)[0])


def test_the_fields_that_others_read_are_there():
    host = randomize(nn.MultiheadAttention(12, 3, batch_first=True))
    model = replaced(host)
    assert isinstance(model, nn.MultiheadAttention)
    for name in ("embed_dim", "kdim", "vdim", "num_heads", "head_dim", "dropout", "batch_first", "add_zero_attn"):
        assert getattr(model, name) == getattr(host, name), name
    for name in ("in_proj_weight", "in_proj_bias"):
        assert torch.equal(getattr(model, name), getattr(host, name))
    assert torch.equal(model.out_proj.weight, host.out_proj.weight)
    assert model.bias_k is None
    assert replaced(nn.MultiheadAttention(12, 3, kdim=5, bias=False)).in_proj_weight is None
    assert replaced(nn.MultiheadAttention(12, 3, bias=False)).in_proj_bias is None


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 5, "vdim": 7}])
def test_checkpoints_go_both_ways(options):
    host = randomize(nn.ModuleDict({"attn": nn.MultiheadAttention(12, 3, **options)}))
    model = replaced(nn.ModuleDict({"attn": nn.MultiheadAttention(12, 3, **options)}))
    model.load_state_dict(host.state_dict())
    for name, tensor in host.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    back = nn.ModuleDict({"attn": nn.MultiheadAttention(12, 3, **options)})
    back.load_state_dict(model.state_dict())
    for name, tensor in host.state_dict().items():
        torch.testing.assert_close(back.state_dict()[name], tensor + 1.0)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})


def test_copies_and_pickles_work_on():
    model = replaced(encoder().eval())
    x = torch.randn(2, 5, 12)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))
        with torch.no_grad():
            twin.layers[0].self_attn.core.query.weight.add_(1.0)
        assert not torch.equal(twin(x), model(x))


def test_hooks_and_references_to_the_module_stay():
    host = nn.MultiheadAttention(12, 3, batch_first=True)
    model = nn.Sequential(nn.Identity())
    model.attn, seen = host, []
    host.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    replace_attention(model)
    assert model.attn is host
    x = torch.randn(2, 5, 12)
    out = host(x, x, x)[0]
    assert seen[0] is out


def test_a_module_that_two_places_share_is_replaced_once_and_stays_shared():
    shared = nn.MultiheadAttention(12, 3)
    model = nn.ModuleList([shared, shared])
    assert len(replace_attention(model).replaced) == 1
    assert model[0] is model[1]
    assert len(list(model.parameters())) == 8


@pytest.mark.parametrize("options", [{}, {"kdim": 5, "vdim": 7}])
def test_weights_that_two_modules_share_stay_shared(options):
    host = nn.ModuleList([nn.MultiheadAttention(12, 3, batch_first=True, **options) for _ in range(2)])
    for name in list(dict(host[0].named_parameters(recurse=False))):
        setattr(host[1], name, getattr(host[0], name))
    model = replaced(host)
    assert len(list(model.parameters())) == 8 + 2  # the output projections are two
    x, key, value = torch.randn(2, 5, 12), torch.randn(2, 4, host[0].kdim), torch.randn(2, 4, host[0].vdim)
    for module in (host, model):
        for attention in module:
            attention(x, key, value)[0].square().sum().backward()
    assert_same_gradients(model, host)


def test_frozen_weights_dtype_and_mode_stay():
    host = nn.MultiheadAttention(12, 3).double().train()
    host.in_proj_weight.requires_grad_(False)
    replace_attention(host)
    assert host.training
    assert host.core.training
    assert {p.dtype for p in host.parameters()} == {torch.float64}
    frozen = {name for name, p in host.named_parameters() if not p.requires_grad}
    assert frozen == {"core.query.weight", "core.key.weight", "core.value.weight"}


class OwnForward(nn.MultiheadAttention):
    def forward(self, x):
        return x


def test_what_cannot_be_replaced_is_named_and_nothing_is_changed():
    model = nn.ModuleDict(
        {
            "good": nn.MultiheadAttention(12, 3),
            "extra": nn.MultiheadAttention(12, 3, add_bias_kv=True),
            "zero": nn.MultiheadAttention(12, 3, add_zero_attn=True),
            "own": OwnForward(12, 3),
        }
    )
    with pytest.raises(ValueError, match=r"extra: add_bias_kv.*zero: add_zero_attn.*own: .*OwnForward") as error:
        replace_attention(model)
    assert "\n" not in str(error.value)
    assert not any(isinstance(module, MultiHeadAttention) for module in model.modules())
    report = replace_attention(model, strict=False)
    assert list(report.replaced) == ["good"]
    assert set(report.refused) == {"extra", "zero", "own"}
    assert "1 attention modules were replaced" in str(report)
    assert "zero was left as it was: add_zero_attn" in str(report)


class WindowAttention(nn.Module):
    pass


def test_a_model_without_known_attention_is_refused_with_what_it_has():
    with pytest.raises(ValueError, match="it has WindowAttention"):
        replace_attention(nn.Sequential(nn.Linear(2, 2), WindowAttention()))


def test_attention_of_an_unknown_class_is_reported_beside_what_was_replaced():
    report = replace_attention(nn.Sequential(nn.MultiheadAttention(12, 3), WindowAttention()))
    assert list(report.replaced) == ["0"]
    assert report.refused == {"1": "WindowAttention is not known here"}


def test_a_second_replacement_changes_nothing():
    model = replaced(encoder())
    cores = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    assert replace_attention(model).replaced == {}
    assert [module for module in model.modules() if isinstance(module, MultiHeadAttention)] == cores


def test_a_nested_tensor_that_reaches_a_replaced_layer_says_what_to_do():
    host = encoder().eval()
    for layer in host.layers:
        replace_attention(layer)
    padding = torch.arange(6) >= torch.tensor([[6], [4]])
    with torch.no_grad(), pytest.raises(ValueError, match="whole model"):
        host(torch.randn(2, 6, 12), src_key_padding_mask=padding)


def test_a_replaced_model_trains():
    torch.manual_seed(0)
    model = nn.Sequential(encoder(dropout=0.1), nn.Flatten(), nn.Linear(5 * 12, 2))
    replace_attention(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x = torch.randn(64, 5, 12)
    labels = (x[:, 0, 0] * x[:, 4, 0] > 0).long()
    losses = []
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_a_replaced_model_compiles_without_a_graph_break():
    model = replaced(encoder().eval())
    x = torch.randn(2, 6, 12)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), model(x), **TOLERANCE)
