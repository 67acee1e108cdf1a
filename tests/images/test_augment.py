"""Augmentation is a function of (seed, epoch, index), and does what its references do."""

import pytest
import torch
from torchvision.transforms.v2 import functional as reference

from mha_apps.images import Augmentation, ImageRecipe, ImageSet, crop_and_flip, normalize
from mha_apps.images.augment import erasing_boxes, inside, mix, mixing
from mha_apps.images.policy import apply_operation, apply_policy, numbers_needed


def some_images(count=32, channels=3, side=16):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, side, side), generator=generator, dtype=torch.uint8)


def some_set(count=32, channels=3, side=16):
    return ImageSet(some_images(count, channels, side), torch.arange(count) % 4, tuple("abcd"))


def test_an_image_is_augmented_alike_in_whatever_batch_it_lands():
    recipe = ImageRecipe(data="x", policy="rand", erasing=0.5, mixup=0.4, cutmix=1.0, seed=3)
    augmentation = Augmentation(some_set(), recipe, mean=[0.5] * 3, std=[0.25] * 3)
    together, targets = augmentation.apply(augmentation.draw(torch.arange(12), 2))
    for part in torch.randperm(12).split(5):
        images, mixed = augmentation.apply(augmentation.draw(part, 2))
        torch.testing.assert_close(images, together[part])
        torch.testing.assert_close(mixed, targets[part])


def test_epochs_and_seeds_augment_differently():
    def draw(seed, epoch):
        return crop_and_flip(some_images(), torch.arange(32), seed=seed, epoch=epoch, crop=2, flip=True)

    assert not torch.equal(draw(0, 0), draw(0, 1))
    assert not torch.equal(draw(0, 0), draw(1, 0))


def test_two_epochs_in_a_row_show_both_sides_of_every_image():
    images = some_images()
    first, second = (
        crop_and_flip(images, torch.arange(32), seed=0, epoch=epoch, crop=0, flip=True) for epoch in (4, 5)
    )
    torch.testing.assert_close(first.flip(-1), second)
    kept = (first == images).flatten(1).all(1)
    assert 4 < kept.sum() < 28


def test_a_crop_is_a_window_of_the_reflected_image():
    images, crop = some_images(), 3
    cropped = crop_and_flip(images, torch.arange(32), seed=1, epoch=0, crop=crop, flip=False)
    padded = torch.nn.functional.pad(images.float(), (crop,) * 4, mode="reflect").to(torch.uint8)
    windows = padded.unfold(2, 16, 1).unfold(3, 16, 1).flatten(2, 3)  # image, channel, place, row, column
    places = (windows == cropped[:, :, None]).all(dim=-1).all(dim=-1).all(dim=1)
    assert places.any(dim=1).all()
    assert places.float().argmax(dim=1).unique().numel() > 10


def test_a_crop_as_wide_as_the_image_is_refused():
    with pytest.raises(ValueError, match="16x16, got 16"):
        crop_and_flip(some_images(), torch.arange(2), seed=0, epoch=0, crop=16, flip=False)


def test_normalized_images_have_mean_zero_and_deviation_one():
    images = some_set(200)
    mean, std = images.statistics()
    normal = normalize(images.images, mean, std).double()
    torch.testing.assert_close(normal.mean(dim=(0, 2, 3)), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.std(dim=(0, 2, 3), correction=0), torch.ones(3).double(), atol=1e-5, rtol=0)


# Each operation beside torchvision's, called one image at a time.
REFERENCES = {
    "shear_x": lambda x, a: reference.affine(
        x, 0.0, [0, 0], 1.0, [float(torch.rad2deg(torch.atan(a))), 0.0], center=[0, 0]
    ),
    "shear_y": lambda x, a: reference.affine(
        x, 0.0, [0, 0], 1.0, [0.0, float(torch.rad2deg(torch.atan(a)))], center=[0, 0]
    ),
    "translate_x": lambda x, a: reference.affine(x, 0.0, [int(a), 0], 1.0, [0.0, 0.0]),
    "translate_y": lambda x, a: reference.affine(x, 0.0, [0, int(a)], 1.0, [0.0, 0.0]),
    "rotate": lambda x, a: reference.rotate(x, float(a)),
    "brightness": lambda x, a: reference.adjust_brightness(x, float(a)),
    "color": lambda x, a: reference.adjust_saturation(x, float(a)),
    "contrast": lambda x, a: reference.adjust_contrast(x, float(a)),
    "sharpness": lambda x, a: reference.adjust_sharpness(x, float(a)),
    "posterize": lambda x, a: reference.posterize(x, int(a)),
    "solarize": lambda x, a: reference.solarize(x, float(a)),
    "autocontrast": lambda x, a: reference.autocontrast(x),
    "equalize": lambda x, a: reference.equalize(x),
}
AMOUNTS = {
    "shear_x": [-0.71, 0.13, 0.58, 0.97],
    "shear_y": [-0.71, 0.13, 0.58, 0.97],
    "translate_x": [-5.0, 3.0, 0.0, 20.0],
    "translate_y": [-5.0, 3.0, 0.0, 20.0],
    "rotate": [-130.0, -20.0, 45.5, 90.0],
    "posterize": [8.0, 6.0, 4.0, 2.0],
    "solarize": [0.0, 100.0, 200.0, 255.0],
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", REFERENCES)
def test_an_operation_changes_images_as_torchvision_does(name, channels):
    # Smooth images: a contrast stretched or a histogram equalised then means something.
    images = torch.nn.functional.interpolate(some_images(4, channels, 5).float(), (17, 17), mode="bicubic")
    images = images.clamp(20, 230).to(torch.uint8)
    amounts = torch.tensor(AMOUNTS.get(name, [0.1, 0.6, 1.0, 1.7]))
    ours = apply_operation(images, name, amounts)
    theirs = torch.stack([REFERENCES[name](x, a) for x, a in zip(images, amounts, strict=True)])
    difference = (ours.int() - theirs.int()).abs()
    if name in ("shear_x", "shear_y", "rotate"):
        # A source half way between two pixels is rounded either way.
        assert (difference == 0).float().mean() > 0.97
    else:
        assert difference.max() <= 1  # float32 in another order, cut to whole numbers


@pytest.mark.parametrize("policy", ["trivial", "rand"])
def test_a_policy_changes_most_images_and_keeps_their_type(policy):
    images = some_images(64)
    numbers = torch.rand(64, numbers_needed(policy), generator=torch.Generator().manual_seed(0))
    changed = apply_policy(images, policy, numbers)
    assert changed.dtype == torch.uint8
    assert changed.shape == images.shape
    assert (changed != images).flatten(1).any(1).float().mean() > 0.7


def test_mixup_blends_images_and_targets_by_the_same_share():
    numbers = torch.rand(500, 4, generator=torch.Generator().manual_seed(0))
    share, box = mixing(numbers, mixup=0.8, cutmix=0.0, size=(16, 16))
    assert not box.any()
    white, black = torch.ones(500, 1, 16, 16), torch.zeros(500, 1, 16, 16)
    torch.testing.assert_close(mix(white, black, share, box).mean(dim=(1, 2, 3)), share)
    # The variance of a beta distribution with both parameters 0.8 is 1 / (4 (2 0.8 + 1)).
    assert share.var().item() == pytest.approx(1 / (4 * 2.6), rel=0.1)


def test_the_share_of_cutmix_is_the_share_of_pixels_kept():
    numbers = torch.rand(500, 4, generator=torch.Generator().manual_seed(0))
    share, box = mixing(numbers, mixup=0.0, cutmix=1.0, size=(16, 8))
    white, black = torch.ones(500, 1, 16, 8), torch.zeros(500, 1, 16, 8)
    mixed = mix(white, black, share, box)
    assert set(mixed.unique().tolist()) <= {0.0, 1.0} or torch.equal(mixed, mixed.round())
    whole = (box[:, 1] > box[:, 0]) & (box[:, 3] > box[:, 2])
    torch.testing.assert_close(mixed.mean(dim=(1, 2, 3))[whole], share[whole])


def test_erasing_takes_the_promised_share_of_images_and_area():
    numbers = torch.rand(2000, 5, generator=torch.Generator().manual_seed(0))
    area = inside(erasing_boxes(numbers, 0.25, (32, 32)), (32, 32)).float().mean(dim=(1, 2))
    assert (area > 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert area[area > 0].min() > 0.01
    assert area.max() < 0.36


def test_mixed_targets_sum_to_one():
    recipe = ImageRecipe(data="x", mixup=0.8, cutmix=1.0)
    augmentation = Augmentation(some_set(), recipe, mean=[0.5] * 3, std=[0.25] * 3)
    _, targets = augmentation.apply(augmentation.draw(torch.arange(32), 0))
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(32))
