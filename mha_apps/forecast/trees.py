"""What practitioners reach for: one gradient-boosted tree model on lags, calendar and lead time.

One model for all series and steps (Ke et al. 2017 is the kind; this is scikit-learn's histogram version). It forecasts
the difference from the window's centre, so that series at different levels share what they have in common. It is a
baseline of every backtest, and a component of the forecast where folds confirm it; then its trees are kept as tensors.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor

from .inputs import Inputs
from .windows import centre

__all__ = ["MOST_ROWS", "Trees"]

MOST_ROWS = 200_000
PAIRS = 400_000  # steps forecast at a time


class Trees:
    """Fit with :meth:`fit`, forecast with :meth:`forecast`; standardised units throughout.

    The calendar features of the inputs are taken at the step that is forecast, and so are covariates that are known
    ahead.

    Args:
        period: rows in a season, for the lags.
        trailing: rows over which windows are centred.
        seed: of the sample of rows and of the trees.
    """

    def __init__(self, *, period: int, trailing: int, seed: int = 0) -> None:
        self.period, self.trailing, self.seed = period, trailing, seed
        self.table: Table | None = None

    def fit(self, inputs: Inputs, origins: Tensor, *, most: int = MOST_ROWS) -> Trees:
        """Fit on at most ``most`` pairs of (series and origin, step), drawn evenly from ``origins``."""
        horizon, series = inputs.windows.horizon, inputs.windows.series
        draw = np.random.default_rng(self.seed)
        count = min(most, 4 * len(origins) * series * horizon)
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
        x[:, ~np.isfinite(x).any(0)] = (
            0.0  # the library cannot bin a feature that is never known; this one splits nothing
        )
        if not known.any():  # no truth to learn from: the forecast is the centre
            x, y, known = np.zeros((2, x.shape[1]), dtype=x.dtype), np.zeros(2), np.ones(2, dtype=bool)
        model = HistGradientBoostingRegressor(
            max_iter=80, learning_rate=0.1, max_leaf_nodes=31, max_depth=6, l2_regularization=1.0,
            early_stopping=False, random_state=self.seed,
        )  # fmt: skip
        self.table = Table.of(model.fit(x[known], y[known]))
        return self

    def forecast(self, inputs: Inputs, origins: Tensor, series: Tensor | None = None) -> Tensor:
        """Point forecasts ``(origins, series, horizon)``, of the series with these numbers, all when None."""
        if self.table is None:
            raise ValueError("these trees are not fitted; call fit first")
        horizon = inputs.windows.horizon
        series = torch.arange(inputs.windows.series) if series is None else series
        lead = torch.arange(horizon)
        pairs = torch.cartesian_prod(origins, series)
        answer = torch.empty(len(pairs), horizon)
        done = 0
        for part in pairs.split(max(1, PAIRS // horizon)):
            rows = inputs.windows.at(part[:, 1], part[:, 0])
            features, level = self._features(inputs, rows.past, part[:, 0], part[:, 1], lead.expand(len(part), -1))
            made = self.table.predict(features.flatten(0, 1)).reshape(len(part), horizon)
            answer[done : done + len(part)] = made.float() + level[:, None]
            done += len(part)
        return answer.reshape(len(origins), len(series), horizon)

    def tensors(self) -> dict[str, Tensor]:
        """What is saved of them."""
        return {} if self.table is None else {f"tree_{name}": tensor for name, tensor in vars(self.table).items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], *, period: int, trailing: int) -> Trees:
        """The inverse of :meth:`tensors`; forecasts are the same to the bit."""
        trees = cls(period=period, trailing=trailing)
        trees.table = Table(**{name[5:]: tensor for name, tensor in tensors.items() if name.startswith("tree_")})
        return trees

    def _features(
        self, inputs: Inputs, past: Tensor, origin: Tensor, series: Tensor, lead: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``(n, steps, features)`` and the level ``(n,)``; missing lags stay NaN, which the trees handle."""
        look_back = past.shape[-1]
        # Means in float64, then rounded: a mean must not fall to the other side of a threshold by who added it up.
        level = centre(past.double(), self.trailing)[2].float()
        z = past - level
        period = max(1, min(self.period, look_back))
        lags = [1, 2, 3, *(k * period for k in (1, 2, 7) if k * period <= look_back)]
        recent = torch.stack([z[:, look_back - lag] for lag in lags if lag <= look_back], -1)
        spans = [span for span in (3, period, 7 * period) if span <= look_back]
        means = torch.stack([z[:, -span:].double().nanmean(-1) for span in spans], -1).float()
        # The values at the phase that is forecast, one and two seasons before.
        phase = lead % period
        same = [z.gather(1, look_back - k * period + phase) for k in (1, 2) if k * period <= look_back]
        steps = lead.shape[1]
        who = inputs.identities[series]  # 0 for a series that training did not know
        parts = [
            *(column[..., None] for column in same),
            torch.cat([recent, means, level], -1)[:, None].expand(-1, steps, -1),
            torch.stack([lead, who[:, None].expand_as(lead)], -1).float(),
            inputs.waves[origin[:, None] + lead + look_back],
        ]
        if inputs.covariates is not None:
            parts.append(self._around(inputs, origin, lead))
        if inputs.static is not None:
            parts.append(inputs.static[series][:, None].expand(-1, steps, -1))
        return torch.cat(parts, -1), level[:, 0]

    def _around(self, inputs: Inputs, origin: Tensor, lead: Tensor) -> Tensor:
        """Covariates ``(n, steps, features)``: those known ahead at the step, and how far they are from their trailing
        mean; of the others that mean and how far the last value is from it. Unknown ones stay NaN."""
        table = inputs.covariates
        assert table is not None
        steps, first = lead.shape[1], table.first
        recent = table.seen(origin, self.trailing)
        level = recent.nanmean(-1)
        ahead = table.ahead(origin, inputs.linear.weights)[:, first:]
        at = ahead.gather(2, lead[:, None].expand(-1, ahead.shape[1], -1)).transpose(1, 2)
        behind = torch.cat([level[:, :first], (recent[..., -1] - level)[:, :first]], -1)
        return torch.cat([at, at - level[:, None, first:], behind[:, None].expand(-1, steps, -1)], -1)


class Table:
    """Regression trees of one depth as tensors, for predictions without scikit-learn.

    A tree is a complete binary one in the order of a heap, ``feature`` and ``threshold`` ``(trees, 2^depth - 1)``,
    ``value`` ``(trees, 2^depth)``; a leaf above the lowest level sends every row to the right, and all its
    descendants have its value. Features below ``features`` take a missing value as larger than every threshold,
    their twins from ``features`` on as smaller. Thresholds are rounded down to float32, which for float32 features
    changes no comparison.
    """

    def __init__(self, feature: Tensor, threshold: Tensor, value: Tensor, start: Tensor, features: Tensor) -> None:
        self.feature, self.threshold, self.value = feature, threshold, value
        self.start, self.features = start, features

    @classmethod
    def of(cls, model: HistGradientBoostingRegressor) -> Table:
        """The trees of a fitted model of scikit-learn's."""
        grown = [stage[0].nodes for stage in model._predictors]
        features = int(model.n_features_in_)
        depth = max(1, *(int(nodes["depth"].max()) for nodes in grown))
        feature = np.zeros((len(grown), 2**depth - 1), dtype=np.int64)
        threshold = np.full(feature.shape, -np.inf, dtype=np.float32)
        value = np.zeros((len(grown), 2**depth))

        def place(number: int, nodes: np.ndarray, node: int, at: int, level: int) -> None:
            row = nodes[node]
            if row["is_leaf"]:
                span = 2 ** (depth - level)
                first = (at + 1) * span - 2**depth
                value[number, first : first + span] = row["value"]
                return
            feature[number, at] = row["feature_idx"] + (features if row["missing_go_to_left"] else 0)
            rounded = np.float32(row["num_threshold"])
            if rounded > row["num_threshold"]:
                rounded = np.nextafter(rounded, np.float32(-np.inf))
            # A split of the missing from all others has no finite threshold.
            threshold[number, at] = min(rounded, np.finfo(np.float32).max)
            place(number, nodes, row["left"], 2 * at + 1, level + 1)
            place(number, nodes, row["right"], 2 * at + 2, level + 1)

        for number, nodes in enumerate(grown):
            place(number, nodes, 0, 0, 0)
        start = torch.tensor(float(np.ravel(model._baseline_prediction)[0]), dtype=torch.float64)
        return cls(
            torch.from_numpy(feature), torch.from_numpy(threshold), torch.from_numpy(value), start,
            torch.tensor(features),
        )  # fmt: skip

    def predict(self, x: Tensor) -> Tensor:
        """Predictions ``(n,)`` float64 for features ``(n, features)`` float32, NaN where missing."""
        answer = [torch.empty(0, dtype=torch.float64)]
        return torch.cat(answer + [self.at_once(part) for part in x.split(512)])  # small enough for the caches

    def at_once(self, x: Tensor) -> Tensor:
        """:meth:`predict` for all rows together, in operations that a graph can hold."""
        trees, inner = self.feature.shape
        leaves = inner + 1
        feature, threshold = self.feature.flatten(), self.threshold.flatten()
        roots = torch.arange(trees) * inner
        missing = torch.isnan(x)
        both = torch.cat([x.masked_fill(missing, torch.inf), x.masked_fill(missing, -torch.inf)], 1)
        at = torch.zeros(x.shape[0], trees, dtype=torch.int64)
        for _ in range(leaves.bit_length() - 1):
            node = at + roots
            right = both.gather(1, feature.take(node)) > threshold.take(node)
            at = 2 * at + 1 + right
        return self.start + self.value.flatten().take(at - inner + torch.arange(trees) * leaves).sum(1)
