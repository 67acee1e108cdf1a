"""The bridge between windows and the network: centring, the linear forecast and the calendar, for a batch of origins.

All of it happens on the CPU, the linear forecast in float64: it is never rounded to bf16 and works on devices
without float64.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from .calendar import encode, extend
from .drivers import CovariateTable
from .linear import LinearPath
from .windows import Scaler, Windows, centre, whole_patches

__all__ = ["GROUP", "Inputs", "around", "groups_of"]

FURTHEST = 10.0  # deviations; a covariate beyond them says no more to the network
GROUP = 16  # series in one example: channels attend within a group, and ten thousand series still fit in memory


def groups_of(series: int) -> Tensor:
    """The numbers of the series in each group ``(groups, members)``."""
    size = min(GROUP, series)
    starts = list(range(0, series - size + 1, size)) if size else []
    if size and series % size:
        starts.append(series - size)  # the last group overlaps the one before it, and is full
    return torch.stack([torch.arange(start, start + size) for start in starts])


class Inputs:
    """Makes the batches that :class:`mha_apps.forecast.model.ForecastModel` reads.

    An example is a group of at most 16 series at one origin. ``index`` are the timestamps of the rows of
    ``windows``; the calendar before and after them is worked out from the frequency. ``covariates`` are those of the
    table, ``static`` the attributes of its series ``(series, attributes)`` float32.
    """

    def __init__(
        self,
        windows: Windows,
        index: pd.DatetimeIndex,
        *,
        linear: LinearPath,
        scaler: Scaler,
        patch: int,
        trailing: int,
        cycles: list[str],
        identities: Tensor | None = None,
        covariates: CovariateTable | None = None,
        static: Tensor | None = None,
    ) -> None:
        self.covariates, self.static = covariates, static
        self.windows, self.linear, self.trailing = windows, linear, trailing
        self.scaler, self.patch = scaler, patch
        look_back, horizon = windows.look_back, windows.horizon
        freq = index.freq if index.freq is not None else index[1] - index[0] if len(index) > 1 else "D"
        before = pd.date_range(end=index[0], periods=look_back + 1, freq=freq)[:-1]
        future = whole_patches(horizon, patch)
        whole = before.append(index).append(extend(index, future))
        waves, bins = encode(whole, cycles)
        self.waves, self.bins = torch.from_numpy(waves), torch.from_numpy(bins)
        # Offsets of the tokens' first steps from the origin, in the rows of the calendar.
        self.offsets = torch.arange(-look_back, future, patch) + look_back
        self.identities = torch.arange(1, windows.series + 1) if identities is None else identities
        self.groups = groups_of(windows.series)

    def batch(self, origins: Tensor, groups: Tensor | None = None) -> dict[str, Tensor]:
        """The examples at ``origins`` ``(batch,)`` of the series groups ``groups`` ``(batch,)``, group 0 when None.

        Returns:
            ``past``, ``mask`` ``(batch, channels, look_back)``; ``linear``, ``target``, ``weight`` ``(batch, channels,
            horizon)``, the target zero where it is missing and the weight too; ``level`` ``(batch, channels, 1)``;
            ``identity`` ``(batch, channels)``; ``waves``, ``bins`` ``(batch, tokens, ...)``. Everything float is
            float32, standardised and relative to the level. Where there are covariates also ``around`` and
            ``around_mask`` ``(batch, covariates, tokens * patch)``, standardised and zero where not known, and where
            there are attributes ``static`` ``(batch, channels, attributes)``.
        """
        series = self.groups[torch.zeros_like(origins) if groups is None else groups]
        rows = self.windows.at(series, origins[:, None].expand_as(series))
        past, mask, level = centre(rows.past.double(), self.trailing)
        known = torch.isfinite(rows.future)
        target = torch.where(known, rows.future.double() - level, 0.0)
        token_rows = origins[:, None] + self.offsets
        return self._around(origins, series) | {
            "past": past.float(),
            "mask": mask.float(),
            "linear": self.linear_forecast(past, mask, level, origins, series).float(),
            "target": target.float(),
            "weight": known.float(),
            "level": level.float(),
            "identity": self.identities[series],
            "waves": self.waves[token_rows],
            "bins": self.bins[token_rows],
        }

    def linear_forecast(self, past: Tensor, mask: Tensor, level: Tensor, origins: Tensor, series: Tensor) -> Tensor:
        """The linear path's forecast for windows of ``series`` ``(channels,)`` or ``(n, channels)`` at ``origins``."""
        return self.linear.forecast(
            past, mask, level, covariates=self.covariates, origins=origins, who=self.identities[series]
        )

    def _around(self, origins: Tensor, series: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if self.static is not None:
            found["static"] = self.static[series]
        if self.covariates is not None:
            rows = len(self.offsets) * self.patch
            found["around"], found["around_mask"] = around(self.covariates, origins, self.linear.weights, rows)
        return found


def around(covariates: CovariateTable, origins: Tensor, weights: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The covariates as the network reads them, zero where not known, and whether they are ``(n, covariates, rows)``.

    Args:
        covariates: of the table.
        origins: ``(n,)``.
        weights: the linear map.
        rows: those of all tokens, past and future.
    """
    values = torch.cat([covariates.seen(origins), covariates.ahead(origins, weights)], -1)
    values = functional.pad(values, (0, rows - values.shape[-1]), value=torch.nan)
    known = torch.isfinite(values)
    return torch.where(known, values, 0.0).clamp(-FURTHEST, FURTHEST), known.float()
