"""The recipes that come with the package are recipes, and fit the presets that they name."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mha_apps.vision
from mha_apps.errors import InputError
from mha_apps.images import ImageSet
from mha_apps.training import load_recipe
from mha_apps.vision import PRESETS, VitRecipe
from mha_apps.vision.train import build

FILES = sorted((Path(mha_apps.vision.__file__).parent / "recipes").glob("*.toml"))


def test_there_are_recipes_for_a_cpu_a_gpu_and_fine_tuning():
    assert [path.stem for path in FILES] == ["cpu-10m", "cpu-60m", "fine-tune", "gpu-300e"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recipe_passes_its_own_check_and_its_model_takes_cifars_images(path):
    recipe = load_recipe(VitRecipe, path)
    recipe.check()
    if recipe.pretrained is None:
        images = ImageSet(torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8), torch.arange(4), tuple("abcd"))
        assert recipe.preset in PRESETS
        assert build(recipe, images)(torch.randn(2, 3, 32, 32)).shape == (2, 4)


@pytest.mark.parametrize("size", [(8, 8), (32, 32), (28, 28), (40, 36), (96, 96), (224, 224)])
def test_the_preset_that_is_picked_by_itself_takes_images_of_the_size(size):
    images = ImageSet(torch.randint(0, 256, (4, 3, *size), dtype=torch.uint8), torch.arange(4), tuple("abcd"))
    model = build(VitRecipe(), images)
    assert model(torch.randn(2, 3, *size)).shape == (2, 4)
    assert min(model.grid) >= 4


def test_images_of_a_size_that_no_patch_divides_are_told_one_that_fits():
    images = ImageSet(torch.zeros(4, 3, 20, 30, dtype=torch.uint8), torch.arange(4), tuple("abcd"))
    with pytest.raises(InputError, match=r"\(20, 30\) is not a multiple .* set --image-size, such as 32"):
        build(VitRecipe(), images)


def test_the_recipe_class_is_known_without_importing_torch():
    code = "import sys; from mha_apps.vision import VitRecipe; VitRecipe().check(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_predicting_imports_no_training_loop():
    code = (
        "import sys; import mha_apps.vision.predict; "
        "assert not {'accelerate', 'timm', 'pandas', 'sklearn', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
