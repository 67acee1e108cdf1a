"""The baseline that practitioners reach for: one gradient-boosted tree model on lags, calendar and lead time.

One model for all series and steps (Ke et al. 2017 is the kind; this is scikit-learn's histogram version). It forecasts
the difference from the window's centre, so that series at different levels share what they have in common.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor

from .inputs import Inputs
from .windows import centre

__all__ = ["Trees"]

MOST_ROWS = 200_000


class Trees:
    """Fit with :meth:`fit`, forecast with :meth:`forecast`; standardised units throughout.

    Args:
        period: rows in a season, for the lags.
        trailing: rows over which windows are centred.
        cycles: whether the inputs carry calendar features; they are taken at the step that is forecast.
        seed: of the sample of rows and of the trees.
    """

    def __init__(self, *, period: int, trailing: int, seed: int = 0) -> None:
        self.period, self.trailing, self.seed = period, trailing, seed
        self.model = HistGradientBoostingRegressor(
            max_iter=100, learning_rate=0.1, max_leaf_nodes=31, l2_regularization=1.0, random_state=seed
        )

    def fit(self, inputs: Inputs, origins: Tensor) -> Trees:
        """Fit on at most 200,000 pairs of (series and origin, step), drawn evenly from ``origins``."""
        horizon, series = inputs.windows.horizon, inputs.windows.series
        draw = np.random.default_rng(self.seed)
        count = min(MOST_ROWS, 4 * len(origins) * series * horizon)
        place = torch.from_numpy(draw.integers(0, len(origins), count))
        who = torch.from_numpy(draw.integers(0, series, count))
        lead = torch.from_numpy(draw.integers(0, horizon, count))
        features, level, target = [], [], []
        for part in torch.arange(count).split(8192):
            rows = inputs.windows.at(who[part], origins[place[part]])
            made, base = self._features(inputs, rows.past, rows.origin, who[part], lead[part, None])
            features.append(made[:, 0])
            level.append(base)
            target.append(rows.future.gather(1, lead[part, None])[:, 0])
        x, y = torch.cat(features).numpy(), (torch.cat(target) - torch.cat(level)).numpy()
        known = np.isfinite(y)
        self.model.fit(x[known], y[known])
        return self

    def forecast(self, inputs: Inputs, origins: Tensor) -> Tensor:
        """Point forecasts ``(origins, series, horizon)``."""
        horizon, series = inputs.windows.horizon, inputs.windows.series
        answer = torch.empty(len(origins), series, horizon)
        lead = torch.arange(horizon)
        for number in range(series):
            done = 0
            for part in origins.split(max(1, 400_000 // horizon)):
                who = torch.full_like(part, number)
                rows = inputs.windows.at(who, part)
                features, level = self._features(inputs, rows.past, part, who, lead.expand(len(part), -1))
                made = self.model.predict(features.flatten(0, 1).numpy()).reshape(len(part), horizon)
                answer[done : done + len(part), number] = torch.from_numpy(made).float() + level[:, None]
                done += len(part)
        return answer

    def _features(
        self, inputs: Inputs, past: Tensor, origin: Tensor, series: Tensor, lead: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``(n, steps, features)`` and the level ``(n,)``; missing lags stay NaN, which the trees handle."""
        look_back = past.shape[-1]
        _, _, level = centre(past, self.trailing)
        z = past - level
        period = max(1, min(self.period, look_back))
        lags = [1, 2, 3, *(k * period for k in (1, 2, 7) if k * period <= look_back)]
        recent = torch.stack([z[:, look_back - lag] for lag in lags if lag <= look_back], -1)
        means = torch.stack([z[:, -span:].nanmean(-1) for span in (3, period, 7 * period) if span <= look_back], -1)
        # The values at the phase that is forecast, one and two seasons before.
        phase = lead % period
        same = [z.gather(1, look_back - k * period + phase) for k in (1, 2) if k * period <= look_back]
        steps = lead.shape[1]
        parts = [
            *(column[..., None] for column in same),
            torch.cat([recent, means, level], -1)[:, None].expand(-1, steps, -1),
            torch.stack([lead, series[:, None].expand_as(lead)], -1).float(),
            inputs.waves[origin[:, None] + lead + look_back],
        ]
        return torch.cat(parts, -1), level[:, 0]
