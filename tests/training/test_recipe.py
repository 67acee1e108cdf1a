"""Recipes: one dataclass that is checked, written and read back."""

import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

from mha_apps.errors import InputError
from mha_apps.training import TrainingRecipe, load_recipe
from mha_apps.training.recipe import from_table, to_table


@dataclass(kw_only=True)
class Example(TrainingRecipe):
    default_budget: ClassVar[tuple[str, float]] = ("steps", 7)
    widths: tuple[int, ...] = (1, 2)


def test_a_recipe_survives_being_written_and_read(tmp_path):
    recipe = Example(minutes=2.5, widths=(4, 5), seed=3)
    assert from_table(Example, to_table(recipe), "here") == recipe
    file = tmp_path / "own.toml"
    file.write_text("learning-rate = 0.5\nwidths = [8]\n")
    assert load_recipe(Example, file) == Example(learning_rate=0.5, widths=(8,))


def test_the_budget_is_the_one_that_is_given_else_the_default():
    assert Example().budget == ("steps", 7)
    assert Example(epochs=3).budget == ("epochs", 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 1, "minutes": 2.0}, "--epochs and --minutes: give one budget"),
        ({"epochs": 0}, "--epochs 0: must be above 0"),
        ({"batch_size": -1}, "--batch-size -1: must be above 0"),
        ({"warmup": 1.0}, "--warmup 1.0: must be at least 0 and below 1"),
        ({"learning_rate": float("nan")}, "--learning-rate nan: must be above 0"),
        ({"learning_rate": float("inf")}, "--learning-rate inf: must be above 0"),
        ({"seed": 2**64}, "--seed 18446744073709551616: must be at least 0"),
        ({"schedule": "linear"}, "--schedule linear: must be one of cosine"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_in_one_line(fields, message):
    with pytest.raises(InputError) as error:
        Example(**fields).check()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat = 1", "did you mean learning_rate?"),
        ("= 3", "is not TOML"),
        ("steps = [1]", "steps = (1,) is not of the type int"),
        ("steps = 2.5", "steps = 2.5 is not of the type int"),
        ("learning_rate = 'fast'", "is not of the type float"),
        ("schedule = 'linear'", "schedule = 'linear'"),
        ("seed = true", "is not of the type int"),
        ("widths = ['a']", "widths = ('a',)"),
        ("recipe = 'hi'", "must be a table"),
    ],
)
def test_a_recipe_file_with_a_mistake_names_the_file_and_the_mistake(tmp_path, text, message):
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        load_recipe(Example, file)
    assert str(file) in str(error.value)
    assert message in str(error.value)
    with pytest.raises(InputError, match="cannot be read"):
        load_recipe(Example, tmp_path / "absent.toml")


def test_recipes_do_not_import_torch():
    code = "import sys; from mha_apps.training import TrainingRecipe; TrainingRecipe(); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
