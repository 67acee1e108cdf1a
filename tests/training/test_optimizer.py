"""Optimisers come from timm; Muon gets hidden matrices alone, and orthogonalises them wherever it runs."""

import pytest
import torch
from torch import nn

from mha_apps.errors import InputError
from mha_apps.training.optimizer import OTHERS_RATE, make_optimizer
from mha_apps.training.recipe import TrainingRecipe


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 12, 3), nn.Flatten(), nn.Linear(48, 16), nn.Linear(16, 4)
    )


def trained_by_muon(optimizer):
    return {id(w) for group in optimizer.param_groups if not group.get("use_fallback") for w in group["params"]}


def test_muon_gets_hidden_matrices_and_adamw_the_rest():
    model = network()
    optimizer = make_optimizer(model, TrainingRecipe(optimizer="muon", learning_rate=0.01, weight_decay=0.1))
    assert trained_by_muon(optimizer) == {id(model[2].weight), id(model[4].weight)}
    everything = [weight for group in optimizer.param_groups for weight in group["params"]]
    assert {id(weight) for weight in everything} == {id(weight) for weight in model.parameters()}
    assert len(everything) == len(list(model.parameters()))
    for group in optimizer.param_groups:
        assert group["fallback_lr_scale"] == (OTHERS_RATE if group.get("use_fallback") else 1.0)
        assert all((weight.ndim > 1) == (group["weight_decay"] > 0) for weight in group["params"])


def test_groups_keep_their_settings():
    model = network()
    groups = [
        {"params": [model[2].weight, model[2].bias], "lr": 0.5},
        {"params": [model[4].weight], "weight_decay": 0.0},
        {"params": [model[5].bias]},
    ]
    optimizer = make_optimizer(model, TrainingRecipe(optimizer="muon", learning_rate=0.01), groups)
    settings = {
        id(w): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for w in group["params"]
    }
    assert settings == {
        id(model[2].weight): (0.5, 0.05), id(model[2].bias): (0.5, 0.05),
        id(model[4].weight): (0.01, 0.0), id(model[5].bias): (0.01, 0.05),
    }  # fmt: skip
    assert trained_by_muon(optimizer) == {id(model[2].weight), id(model[4].weight)}


def test_a_step_of_muon_moves_a_matrix_along_the_orthogonal_factor_of_its_gradient():
    model = network()
    optimizer = make_optimizer(model, TrainingRecipe(optimizer="muon", learning_rate=0.01, weight_decay=0.0))
    weight = model[4].weight
    weight.grad = torch.randn_like(weight)  # of full rank, so that its orthogonal factor is one
    before = weight.detach().double()
    # The reference: U V' of the gradient's singular value decomposition.
    u, _, v = torch.linalg.svd(weight.grad.double(), full_matrices=False)
    optimizer.step()
    moved = before - weight.detach().double()
    direction = (u @ v) * moved.norm() / (u @ v).norm()
    # Five steps of the iteration leave singular values within about 0.7 to 1.2.
    assert torch.nn.functional.cosine_similarity(moved.flatten(), direction.flatten(), dim=0) > 0.95


def test_an_unknown_name_is_one_line():
    with pytest.raises(InputError, match="--optimizer nosuch: timm knows none"):
        make_optimizer(network(), TrainingRecipe(optimizer="nosuch"))
