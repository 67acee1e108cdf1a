"""replace_attention on models of timm and transformers: the model before the replacement is the reference."""

import copy
import inspect
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from mha_apps.attention import (
    Causal,
    MultiHeadAttention,
    Window2d,
    record_attention,
    replace_attention,
)

TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def replaced(model: nn.Module, **options) -> nn.Module:
    model = copy.deepcopy(model)
    replace_attention(model, **options)
    return model


def randomize(model: nn.Module) -> nn.Module:
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
    return model.state_dict()


def assert_same(model: nn.Module, host: nn.Module, *args, **kwargs) -> None:
    """Outputs and gradients agree in eval."""
    for module in (model, host):
        module.zero_grad()
    out, expected = (module(*args, **kwargs) for module in (model, host))
    out, expected = (y if isinstance(y, Tensor) else y[0] for y in (out, expected))
    torch.testing.assert_close(out, expected, **TOLERANCE)
    for y in (out, expected):
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    found, wanted = gradients(model), gradients(host)
    assert set(found) == set(wanted)
    for name, gradient in wanted.items():
        if gradient.dtype.is_floating_point:
            scale = max(1.0, float(gradient.abs().max()))
            torch.testing.assert_close(found[name], gradient, atol=1e-5 * scale, rtol=0, msg=lambda m, n=name: n + m)


def test_importing_the_core_imports_no_peer():
    source = "import sys, mha_apps.attention; print([m for m in ('timm', 'transformers') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# --- timm ---


def timm_attention(**options) -> nn.Module:
    layers = pytest.importorskip("timm.layers")
    taken = inspect.signature(layers.Attention).parameters
    if any(name not in taken for name in options):
        pytest.skip("this timm has no such option")
    torch.manual_seed(0)
    return randomize(layers.Attention(12, num_heads=3, **options)).eval()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qkv_bias": True},
        {"qkv_bias": True, "qk_norm": True, "norm_layer": nn.LayerNorm},
        {"scale_norm": True, "norm_layer": nn.LayerNorm, "proj_bias": False},
        {"gated": True},
        {"attn_head_dim": 8, "dim_out": 5},
    ],
    ids=str,
)
def test_timm_attention_gives_the_same_outputs_and_gradients(options, fused):
    host = timm_attention(**options)
    host.fused_attn = fused
    assert_same(replaced(host), host, torch.randn(2, 5, 12))


@pytest.mark.parametrize("shape", [(5, 5), (3, 5, 5), (2, 1, 5, 5), (2, 3, 5, 5)])
@pytest.mark.parametrize("boolean", [True, False])
def test_timm_attention_takes_its_masks(shape, boolean):
    host = timm_attention()
    host.fused_attn = True
    mask = torch.rand(shape) < 0.6
    mask[..., 0] = True
    mask = mask if boolean else torch.randn(shape).masked_fill(~mask, -torch.inf)
    assert_same(replaced(host), host, torch.randn(2, 5, 12), attn_mask=mask)


def test_timm_attention_takes_is_causal_and_masks_of_ours():
    host = timm_attention()
    model, x = replaced(host), torch.randn(2, 5, 12)
    host.fused_attn = True
    expected = host(x, attn_mask=torch.ones(5, 5, dtype=torch.bool).tril())
    for out in (model(x, is_causal=True), model(x, attn_mask=Causal()), replaced(host, mask=Causal())(x)):
        torch.testing.assert_close(out, expected, **TOLERANCE)
    with pytest.raises(ValueError, match="both"):
        model(x, attn_mask=torch.ones(5, 5, dtype=torch.bool), is_causal=True)


def test_timm_dropout_of_weights_and_of_the_projection_work_in_training_only():
    host = timm_attention(attn_drop=0.4, proj_drop=0.3).train()
    host.fused_attn = False
    model, samples = replaced(host), 4000
    x = torch.randn(1, 5, 12).expand(samples, -1, -1)
    with torch.no_grad():
        expected, out = host(x), model(x)
        evaluated = model.eval()(x[:1])
        torch.testing.assert_close(evaluated, host.eval()(x[:1]), **TOLERANCE)
    spread = expected.std(dim=0)
    assert ((out.mean(dim=0) - evaluated[0]).abs() < 6 * spread / samples**0.5).all()
    assert ((out.std(dim=0) / spread - 1).abs() < 0.15).all()


def test_a_timm_attention_with_another_scale_is_refused():
    host = timm_attention()
    host.scale = 1.0
    with pytest.raises(ValueError, match="its scale is 1"):
        replace_attention(host)


def test_a_timm_vit_gives_the_same_and_takes_a_window_in_every_layer():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    host = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=24, num_heads=3, num_classes=5
    )
    host = randomize(host).eval()
    model = replaced(host)
    x = torch.randn(2, 3, 32, 32)
    assert_same(model, host, x)
    window = Window2d(4, 4, 2, 2, prefix=1)
    for block in model.blocks:
        block.attn.mask = window
    with record_attention(model) as maps:
        model(x)
    assert all((weights[..., ~window.materialize(17, 17)[0, 0]] == 0).all() for weights in maps.values())
    assert list(maps) == ["blocks.0.attn.core", "blocks.1.attn.core"]
    twin = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=24, num_heads=3, num_classes=5
    )
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(twin.eval()(x), host(x), **TOLERANCE)


# --- transformers ---


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


SMALL = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}


def image_model(transformers, name: str = "ViT", **options) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL, image_size=16, patch_size=8, **options)
    return randomize(getattr(transformers, f"{name}Model")(config)).eval()


def text_model(transformers, name: str = "Bert", **options) -> nn.Module:
    torch.manual_seed(0)
    small = {**SMALL, "vocab_size": 50, "max_position_embeddings": 32}
    small |= {"embedding_size": 12} if name == "Electra" else {}
    config = getattr(transformers, f"{name}Config")(**small, **options)
    return randomize(getattr(transformers, f"{name}Model")(config)).eval()


def padded_text() -> dict[str, Tensor]:
    ids = torch.arange(12).reshape(2, 6) + 3
    return {"input_ids": ids, "attention_mask": (torch.arange(6) < torch.tensor([[6], [4]])).long()}


@pytest.mark.parametrize("name", ["ViT", "DeiT", "Dinov2", "ViTMSN"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_hugging_face_image_models_give_the_same(transformers, name, implementation):
    host = image_model(transformers, name, attn_implementation=implementation)
    assert_same(replaced(host), host, torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("name", ["Bert", "Roberta", "XLMRoberta", "Camembert", "Electra"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_hugging_face_text_models_give_the_same_with_padding(transformers, name, implementation):
    if (name, implementation) == ("Electra", "sdpa") and transformers.__version__.startswith("4."):
        pytest.skip("this transformers has no SDPA for Electra")
    host = text_model(transformers, name, attn_implementation=implementation)
    assert_same(replaced(host), host, **padded_text())


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_hugging_face_models_return_attentions_when_asked_whatever_the_implementation(transformers, implementation):
    eager = text_model(transformers, attn_implementation="eager")
    expected = eager(**padded_text(), output_attentions=True).attentions
    model = replaced(text_model(transformers, attn_implementation=implementation))
    with record_attention(model) as maps:
        found = model(**padded_text(), output_attentions=True).attentions
    assert len(found) == len(expected) == len(maps) == 2
    for weights, recorded, wanted in zip(found, maps.values(), expected, strict=True):
        torch.testing.assert_close(weights, wanted, **TOLERANCE)
        torch.testing.assert_close(recorded, wanted, **TOLERANCE)
    out = model(**padded_text())
    assert out.attentions is None


def test_hugging_face_dropout_works_in_training_only(transformers):
    host = text_model(transformers, attention_probs_dropout_prob=0.4, hidden_dropout_prob=0.0)
    host = host.encoder.layer[0].attention.self.train()
    model, samples = replaced(host), 4000
    x = torch.randn(1, 5, 12).expand(samples, -1, -1)
    with torch.no_grad():
        expected, out, evaluated = host(x)[0], model(x)[0], model.eval()(x[:1])[0]
    spread = expected.std(dim=0)
    assert ((out.mean(dim=0) - evaluated[0]).abs() < 6 * spread / samples**0.5).all()
    assert ((out.std(dim=0) / spread - 1).abs() < 0.15).all()


def test_a_hugging_face_checkpoint_of_a_replaced_model_loads_without_us(transformers, tmp_path):
    host = text_model(transformers)
    model = replaced(host)
    model.save_pretrained(tmp_path)
    back = transformers.BertModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(back(**padded_text())[0], host(**padded_text())[0], **TOLERANCE)


def test_a_hugging_face_decoder_is_refused_by_name(transformers):
    host = text_model(transformers, is_decoder=True)
    with pytest.raises(ValueError, match=r"encoder\.layer\.0\.attention\.self: it belongs to a decoder"):
        replace_attention(host)
    assert not any(isinstance(module, MultiHeadAttention) for module in host.modules())


def test_a_cache_is_refused_by_a_replaced_module(transformers):
    model = replaced(text_model(transformers)).encoder.layer[0].attention.self
    name = "cache" if "cache" in inspect.signature(type(model).__mro__[2].forward).parameters else "past_key_values"
    with pytest.raises(ValueError, match=name):
        model(torch.randn(2, 5, 12), **{name: object()})


def test_a_two_dimensional_mask_means_real_keys_as_flash_attention_gets_it(transformers):
    host = text_model(transformers, attn_implementation="sdpa").encoder.layer[0].attention.self
    x, real = torch.randn(2, 6, 12), padded_text()["attention_mask"]
    expected = host(x, attention_mask=real.bool()[:, None, None, :])[0]
    torch.testing.assert_close(replaced(host)(x, attention_mask=real)[0], expected, **TOLERANCE)
