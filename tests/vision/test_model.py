"""The ViT: shapes, positions, saving, and equality with timm's."""

import pytest
import timm
import torch

from mha_apps.errors import InputError
from mha_apps.vision import PRESETS, ViT, from_timm, replace_head, resize
from mha_apps.vision.pyramid import PatchMerging

SMALL = {"image_size": 16, "patch_size": 4, "dim": 32, "depth": 2, "heads": 2, "classes": 5}


def images(model, batch=2):
    return torch.randn(batch, model.channels, *model.image_size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("stem", ["patch", "conv", "pooled", "shifted"])
@pytest.mark.parametrize("pool", ["mean", "class", "attention"])
def test_every_stem_and_pool_gives_logits_and_a_gradient_to_every_weight(stem, pool):
    model = ViT(**SMALL | {"stem": stem, "pool": pool, "registers": 2, "layer_scale": 0.1})
    logits = model(images(model))
    assert logits.shape == (2, 5)
    logits.square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


@pytest.mark.parametrize(
    "position", ["none", "learned", "sinusoidal", "rotary", "relative", "learned+relative", "sinusoidal+rotary"]
)
def test_only_a_model_without_positions_is_blind_to_the_order_of_patches(position):
    model = ViT(**SMALL | {"position": position, "pool": "class", "registers": 1}).eval()
    picture = images(model)
    swapped = picture.clone()
    swapped[:, :, :4, :4], swapped[:, :, 8:12, 12:] = picture[:, :, 8:12, 12:], picture[:, :, :4, :4]
    torch.manual_seed(0)
    for weight in model.parameters():  # relative biases start so near zero that a difference would drown
        weight.data.add_(0.3 * torch.randn_like(weight))
    same = torch.allclose(model(picture), model(swapped), atol=1e-4)
    assert same == (position == "none")


def test_rectangles_and_any_number_of_channels_fit():
    model = ViT(image_size=(24, 16), patch_size=(6, 4), channels=5, classes=3, dim=32, depth=1, heads=2)
    assert model.grid == (4, 4)
    assert model(images(model)).shape == (2, 3)


def test_patches_are_cut_row_by_row():
    model = ViT(**SMALL | {"position": "none", "stem": "patch"})
    picture = torch.zeros(1, 3, 16, 16)
    picture[0, :, 4:8, 12:16] = 1
    tokens = model.stem(picture)[0]
    differs = (tokens - tokens[0]).abs().sum(dim=1) > 1e-6
    assert differs.nonzero().flatten().tolist() == [1 * 4 + 3]


def test_a_pooled_stem_is_convolutions_norms_and_maxima_in_the_usual_order():
    stem = ViT(**SMALL | {"stem": "pooled"}).stem
    norms = [layer for layer in stem.layers if isinstance(layer, torch.nn.BatchNorm2d)]
    for norm in norms:  # with a weight below zero the order of norm and maximum would count
        norm.weight.data.uniform_(0.1, 2)
        norm.bias.data.normal_()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    picture = torch.randn(2, 3, 16, 16)
    convolutions = [layer for layer in stem.layers if isinstance(layer, torch.nn.Conv2d)]
    x = picture
    for number, (convolution, norm) in enumerate(zip(convolutions, norms, strict=True)):
        x = norm.eval()(torch.nn.functional.conv2d(x, convolution.weight, padding=1))
        if number % 2 == 0:
            x = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).amax(dim=(3, 5))
        x = torch.nn.functional.gelu(x)
    assert [layer.out_channels for layer in convolutions] == [8, 8, 32, 32]
    torch.testing.assert_close(stem.eval()(picture), x.flatten(2).transpose(1, 2))


def test_shifted_patches_see_half_a_patch_beyond_their_border():
    model = ViT(**SMALL | {"stem": "shifted"})
    empty = model.stem(torch.zeros(1, 3, 16, 16))
    picture = torch.zeros(1, 3, 16, 16)
    picture[0, :, 6, 6] = 1  # in patch (1, 1), within half a patch of (1, 2), (2, 1) and (2, 2)
    seen = ((model.stem(picture) - empty).abs().sum(dim=-1) > 1e-6)[0].nonzero().flatten().tolist()
    assert seen == [5, 6, 9, 10]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image_size": 18}, "not a multiple of patch_size"),
        ({"heads": 5}, "heads 5"),
        ({"stem": "pyramid"}, "stem must be one of"),
        ({"position": "learned+sinusoidal"}, "position must be"),
        ({"patch_size": 2, "image_size": 6, "stem": "conv", "dim": 33, "heads": 3}, "dim divisible by 2"),
        ({"mean": [0.5]}, "one value for each of 3 channels"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_values(change, words):
    with pytest.raises(ValueError, match=words):
        ViT(**SMALL | change)


def test_images_of_another_size_are_refused_with_both_shapes():
    with pytest.raises(ValueError, match=r"\(batch, 3, 16, 16\), got \(2, 3, 16, 20\)"):
        ViT(**SMALL)(torch.zeros(2, 3, 16, 20))


def test_a_saved_model_comes_back_with_its_classes_and_normalisation(tmp_path):
    names = ["cat", "dög", "a b"]
    model = ViT(**SMALL | {"classes": names, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}).eval()
    model.save_pretrained(tmp_path)
    again = ViT.from_pretrained(tmp_path).eval()
    assert again.classes == tuple(names)
    assert (again.mean, again.std) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    torch.testing.assert_close(again(images(model)), model(images(model)), rtol=0, atol=0)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_parameters_that_it_states(name):
    settings = PRESETS[name].settings
    size = 8 if name == "digits" else 224 if settings["patch_size"] == 16 else 32
    with torch.device("meta"):
        model = ViT(image_size=size, channels=1 if size == 8 else 3, classes=1000 if size == 224 else 10, **settings)
    millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    stated = float(PRESETS[name].about.split("M parameters")[0].split()[-1])
    assert millions == pytest.approx(stated, rel=0.06)


WINDOWED = {
    "image_size": 32,
    "patch_size": 4,
    "dim": 16,
    "heads": 2,
    "depth": [2, 1],
    "window": 4,
    "position": "relative",
}


def test_windows_keep_a_token_from_what_lies_beyond_until_they_shift():
    stage = ViT(**WINDOWED).eval().encoder.stages[0]
    x = torch.randn(1, 64, 16, requires_grad=True)
    rows, columns = torch.arange(64) // 8, torch.arange(64) % 8

    def reached(depth, token):
        y = x
        for number in range(depth):
            y = stage.blocks[number](y, stage.masks[number % 2])
        return torch.autograd.grad(y[0, token].sum(), x)[0][0].abs().sum(dim=1) > 0

    for row, column in [(0, 0), (3, 4), (5, 2), (7, 7)]:
        token = row * 8 + column
        same = (rows // 4 == row // 4) & (columns // 4 == column // 4)
        assert torch.equal(reached(1, token), same)
        # Shifted windows end at 2 and 6; through them a token sees all unshifted windows that its own one touches.
        shifted = ((rows + 2) // 4 == (row + 2) // 4) & ((columns + 2) // 4 == (column + 2) // 4)
        windows = {(int(r) // 4, int(c) // 4) for r, c in zip(rows[shifted], columns[shifted], strict=True)}
        wide = torch.tensor([(int(r) // 4, int(c) // 4) in windows for r, c in zip(rows, columns, strict=True)])
        assert torch.equal(reached(2, token), wide)


def test_patch_merging_joins_the_four_neighbours_of_each_place():
    merging = PatchMerging((4, 6), 3)
    x = torch.randn(2, 24, 3)
    out = merging(x)
    for row in range(2):
        for column in range(3):
            four = [x[:, (2 * row + p) * 6 + 2 * column + q] for p in (0, 1) for q in (0, 1)]
            expected = merging.project(merging.norm(torch.cat(four, dim=-1)))
            torch.testing.assert_close(out[:, row * 3 + column], expected)
    weights = torch.rand(2, 6)
    spread = merging.spread(weights)
    assert spread.shape == (2, 24)
    assert torch.equal(spread[:, 1 * 6 + 2], weights[:, 1] / 4)
    torch.testing.assert_close(spread.sum(dim=1), weights.sum(dim=1))


@pytest.mark.parametrize("depth", [3, [3], [2, 2], [1, 1, 1]])
def test_every_weight_of_a_windowed_model_gets_a_gradient_and_it_is_saved_whole(depth, tmp_path):
    model = ViT(**WINDOWED | {"depth": depth, "drop_path": 0.1, "pool": "attention", "activation": "relu2"})
    logits = model(images(model))
    logits.square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    model.eval().save_pretrained(tmp_path)
    again = ViT.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(images(model)), model(images(model)), rtol=0, atol=0)


def test_a_windowed_model_takes_a_larger_image_with_the_biases_of_its_windows_as_they_are():
    model = ViT(**WINDOWED)
    large = resize(model, (64, 96))
    assert large(images(large)).shape == (2, 10)
    assert torch.equal(large.encoder.stages[0].blocks[0].attention.position.table,
                       model.encoder.stages[0].blocks[0].attention.position.table)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pool": "class"}, "no class token"),
        ({"registers": 1}, "no registers"),
        ({"depth": [1, 1, 1, 1, 1]}, "8x8 patches cannot be merged 4 times"),
        ({"window": 0}, "window must be at least 1"),
    ],
)
def test_stages_that_do_not_fit_are_refused_with_the_values(change, words):
    with pytest.raises(ValueError, match=words):
        ViT(**WINDOWED | change)


@pytest.mark.parametrize("registers", [0, 3])
def test_timms_weights_give_timms_logits(registers):
    torch.manual_seed(0)
    source = timm.models.vision_transformer.VisionTransformer(
        img_size=48, patch_size=8, embed_dim=48, depth=3, num_heads=3, num_classes=7, reg_tokens=registers,
        init_values=0.3, no_embed_class=bool(registers),
    ).eval()  # fmt: skip
    for weight in source.parameters():
        weight.data.add_(0.05 * torch.randn_like(weight))
    model = from_timm(source)
    picture = images(model)
    torch.testing.assert_close(model(picture), source(picture), atol=1e-4, rtol=0)


def test_a_named_timm_model_converts_and_keeps_its_normalisation():
    model = from_timm("vit_tiny_patch16_224")
    assert model.image_size == (224, 224)
    assert model.mean == [0.5, 0.5, 0.5]


def test_a_timm_model_that_is_no_plain_vit_is_refused_by_name():
    with pytest.raises(InputError, match=r"resnet18: is ResNet"):
        from_timm("resnet18")
    with pytest.raises(InputError, match="pooling other than the class token"):
        from_timm(timm.models.vision_transformer.VisionTransformer(global_pool="avg", depth=1))


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "learned+relative"])
def test_a_resized_model_takes_the_new_size_and_agrees_at_the_old(position):
    model = ViT(**SMALL | {"position": position, "pool": "class"}).eval()
    larger = resize(model, (24, 32))
    assert larger(images(larger)).shape == (2, 5)
    torch.testing.assert_close(resize(model, 16)(images(model)), model(images(model)), atol=1e-5, rtol=0)


def test_resizing_there_and_back_nearly_restores_smooth_positions():
    model = ViT(**SMALL | {"image_size": 32})
    row = torch.linspace(-1, 1, 8)
    model.position.data = (row[:, None] + row[None, :]).flatten()[:, None].expand(-1, 32).clone()
    back = resize(resize(model, 64), 32)
    torch.testing.assert_close(back.position, model.position, atol=0.1, rtol=0)


def test_a_new_head_keeps_the_features():
    model = ViT(**SMALL).eval()
    other = replace_head(model, ["x", "y"])
    assert other(images(model)).shape == (2, 2)
    torch.testing.assert_close(other.features(images(model)), model.features(images(model)))
