"""The optimiser of a recipe: timm makes it; what its Muon has to know about a model is settled here."""

from __future__ import annotations

from functools import partial
from typing import Any

import timm.optim.muon as timm_muon
import torch
from timm.optim import create_optimizer_v2
from torch import nn

from mha_apps.errors import InputError
from mha_apps.training.device import cpu_has_bf16_matrix_units
from mha_apps.training.recipe import TrainingRecipe

__all__ = ["make_optimizer"]

OTHERS_RATE = 0.25
"""With Muon: the learning rate of all that AdamW trains, over that of the matrices."""


def make_optimizer(
    model: nn.Module, recipe: TrainingRecipe, parameters: list[dict[str, Any]] | None = None
) -> torch.optim.Optimizer:
    """The optimiser that the recipe names, over the parameters of ``model``.

    Muon (Jordan et al. 2024) is for matrices between hidden layers. The first layer with a matrix, the last, biases,
    norms, positions and whatever else is no weight of a linear map or convolution are trained by AdamW, at
    ``OTHERS_RATE`` times the learning rate.

    Args:
        model: what is trained, on its device.
        recipe: name of the optimiser, learning rate and weight decay.
        parameters: groups with settings of their own; when None all of the model's, without decay of vectors.

    Raises:
        InputError: timm knows no optimiser of that name.
    """
    weights: Any = model if parameters is None else parameters
    if "muon" in recipe.optimizer.lower():
        if parameters is None:
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            parameters = [
                {"params": [weight for weight in trained if weight.ndim > 1]},
                {"params": [weight for weight in trained if weight.ndim <= 1], "weight_decay": 0.0},
            ]
        weights = _apart(parameters, _hidden(model))
        if next(model.parameters()).device.type == "cpu" and not cpu_has_bf16_matrix_units():
            _iterate_in_float32()
    try:
        return create_optimizer_v2(
            weights, opt=recipe.optimizer, lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
    except (ValueError, AssertionError) as error:
        raise InputError(f"--optimizer {recipe.optimizer}: timm knows none of that name ({error})") from error


def _hidden(model: nn.Module) -> set[int]:
    """The ids of the weights of all linear maps and convolutions but the first and the last, in the order of the model.

    One map alone is hidden: there is nothing else to train with Muon.
    """
    maps = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))]
    return {id(module.weight) for module in (maps[1:-1] if len(maps) > 2 else maps)}


def _apart(groups: list[dict[str, Any]], hidden: set[int]) -> list[dict[str, Any]]:
    """Each group in two: matrices that are hidden, and what falls back to AdamW. Empty ones are left out."""
    parts = []
    for group in groups:
        inside = [weight for weight in group["params"] if id(weight) in hidden]
        others = [weight for weight in group["params"] if id(weight) not in hidden]
        parts += [group | {"params": inside}] if inside else []
        parts += [group | {"params": others, "use_fallback": True, "fallback_lr_scale": OTHERS_RATE}] if others else []
    return parts


def _iterate_in_float32() -> None:
    """Let timm's Muon orthogonalise in float32, where bf16 is emulated and hundreds of times as slow.

    timm gives no other way to choose; the iteration is the same, and more precise.
    """
    current = timm_muon.zeropower_via_newtonschulz
    if not isinstance(current, partial):
        timm_muon.zeropower_via_newtonschulz = partial(current, dtype=torch.float32)
