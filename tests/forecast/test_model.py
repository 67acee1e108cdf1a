"""The network behind its gates."""

import numpy as np
import pandas as pd
import pytest
import torch

from mha_apps.forecast.inputs import Inputs
from mha_apps.forecast.linear import LinearPath
from mha_apps.forecast.model import ForecastModel
from mha_apps.forecast.windows import Scaler, Windows

LOOK_BACK, HORIZON, PATCH = 24, 10, 4


def make(**changes):
    torch.manual_seed(0)
    options = {"dim": 8, "heads": 2, "layers": 1, "cycles": ["hour"], "members": 1} | changes
    return ForecastModel(
        series=["a", "b", "c"], look_back=LOOK_BACK, horizon=HORIZON, patch=PATCH, period=8, far=8, trailing=8,
        frequency="h", **options,
    )  # fmt: skip


def open_gates(model):
    for path in model.paths:
        torch.nn.init.normal_(path.gate)
    return model


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(80, 3))
    values[30:40, 1] = np.nan
    windows = Windows(values, look_back=LOOK_BACK, horizon=HORIZON)
    inputs = Inputs(
        windows,
        pd.date_range("2024", periods=80, freq="h"),
        linear=LinearPath(torch.from_numpy(0.1 * rng.normal(size=(LOOK_BACK, HORIZON)))),
        scaler=Scaler.fit(values),
        patch=PATCH,
        trailing=8,
        cycles=["hour"],
    )
    return inputs.batch(torch.tensor([30, 42, 80]))


def test_the_forecast_starts_as_the_linear_one(batch):
    torch.testing.assert_close(make().eval()(batch)[..., 0], batch["linear"])


def test_switching_the_attention_off_gives_the_linear_forecast_back(batch):
    model = open_gates(make()).eval()
    assert not torch.allclose(model(batch)[..., 0], batch["linear"])
    model.attention_weight.zero_()
    torch.testing.assert_close(model(batch)[..., 0], batch["linear"])


@pytest.mark.parametrize("gate", [0.0, 5.0, -50.0])
def test_quantiles_never_cross(batch, gate):
    model = make().eval()
    torch.nn.init.constant_(model.paths[0].gate, gate)
    quantiles = model(batch)[..., 1:]
    assert (quantiles.diff(dim=-1) > 0).all()


def test_the_mean_of_members_is_what_is_forecast(batch):
    model = open_gates(make(members=2, dropout=0.0))
    each = model.train()(batch)
    assert each.shape == (2, 3, 3, HORIZON, 6)
    torch.testing.assert_close(model.eval()(batch), each.mean(0))


def test_what_is_missing_has_no_influence(batch):
    model = open_gates(make()).eval()
    before = model(batch)
    hidden = dict(batch, target=batch["target"] + 7.0)
    torch.testing.assert_close(model(hidden), before)
    assert torch.isfinite(before).all()
    assert (batch["past"][batch["mask"] == 0] == 0).all()


def test_channels_matter_to_each_other_only_when_they_may(batch):
    together, alone = open_gates(make()).eval(), open_gates(make(channels=False)).eval()
    changed = dict(batch, past=batch["past"].clone())
    changed["past"][:, 2] += 1.0
    assert torch.equal(alone(batch)[:, :2], alone(changed)[:, :2])
    assert not torch.equal(together(batch)[:, :2], together(changed)[:, :2])


def test_a_window_of_tokens_hides_what_is_far_and_out_of_phase(batch):
    model = open_gates(make(window=2, layers=1, channels=False)).eval()
    mask = model.paths[0].mask.materialize(9, 9, heads=2)[0]
    assert mask[0, 8].nonzero().flatten().tolist() == [6, 7, 8]
    assert mask[1, 8].nonzero().flatten().tolist() == [4, 6, 8]  # a period is two tokens
    past = batch["past"].clone().requires_grad_()
    context = torch.zeros(3, 3, 1)
    names = ("mask", "linear", "waves", "bins", "identity")
    model.paths[0](past, *(batch[name] for name in names), context)[..., -2:, :].sum().backward()
    # The last two steps are token 8. Of the past, tokens 0 to 5, one layer lets it see only the one two periods back.
    by_token = past.grad.abs().sum((0, 1)).reshape(6, PATCH).sum(1)
    assert by_token.nonzero().flatten().tolist() == [4]


def test_a_saved_model_is_the_same_to_the_bit(batch, tmp_path):
    model = open_gates(make()).eval()
    model.set_spread(torch.randn(50, 3, HORIZON))
    model.artifacts = {"linear": torch.randn(4, 3, dtype=torch.float64)}
    model.save_pretrained(tmp_path)
    loaded = ForecastModel.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(batch), model(batch))
    assert torch.equal(loaded.artifacts["linear"], model.artifacts["linear"])
    assert loaded.series == ["a", "b", "c"]


def test_spreads_start_at_the_quantiles_of_the_residuals(batch):
    model = make().eval()
    residuals = torch.randn(4000, 3, HORIZON) * torch.tensor([1.0, 5.0, 0.2])[:, None]
    residuals[:, 1, ::2] = torch.nan
    model.set_spread(residuals)
    forecast = model(batch)
    low = (forecast[..., 2] - forecast[..., 0]).mean((0, 2))
    torch.testing.assert_close(low, -1.2816 * torch.tensor([1.0, 5.0, 0.2]), rtol=0.05, atol=0.0)
