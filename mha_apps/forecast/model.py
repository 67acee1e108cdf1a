"""The network: a fixed linear forecast, and attention that learns what it leaves over behind gates that start at zero.

Tokens are patches of one channel's past, and patches of its future that hold the linear forecast and the calendar,
so one sequence knows what was, what the linear path expects and what time it will be (patching: Nie et al. 2023,
"A Time Series is Worth 64 Words"). Blocks attend along time and, with several channels, between channels at the same
time (as in Zhang and Yan 2023, "Crossformer"). Patches of covariates and attributes of the series are added to the
tokens. The quantiles are a median and positive gaps, so they cannot cross.
"""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from einops import rearrange
from huggingface_hub import PyTorchModelHubMixin
from pandas.tseries.offsets import BaseOffset
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, nn

from mha_apps.attention import Dilated, Mask, PerHead, TransformerBlock, Window
from mha_apps.errors import InputError

from .calendar import CYCLES
from .covariates import Covariates
from .drivers import count_drivers
from .linear import blocks_of
from .reading.grid import offset_of
from .windows import whole_patches

__all__ = ["LEVELS", "AttentionPath", "ForecastModel", "load_folder"]

FORMAT = 2
"""Of what is saved: one more whenever the meaning of anything in it changes, or more is needed. Of format 2, the
intervals of meters are of their readings."""
FILES = ("config.json", "model.safetensors", "artifacts.safetensors")
LEVELS = (0.025, 0.1, 0.5, 0.9, 0.975)
"""The quantiles that the model gives, in order; the outer pairs bound the 95% and the 80% interval."""

UNKNOWN = 0  # identity of a series that training did not know; known ones count from 1


class AttentionPath(nn.Module):
    """Corrections to a linear forecast.

    Args:
        look_back: steps of the past, a multiple of ``patch``.
        horizon: steps of the future.
        patch: steps in a token.
        identities: how many series have an embedding of their own.
        cycles: names of calendar cycles, see :mod:`mha_apps.forecast.calendar`.
        dim, heads, layers, dropout: size of the transformer.
        channels: let channels attend to each other.
        window: how many tokens to each side the near heads see, and the far heads ``far`` apart; None lets every head
            see every token.
        far: tokens from one that a far head sees to the next, such as a period of them.
        covariates: how many are known beside the channels.
        attributes: how many are known of each channel.
    """

    def __init__(
        self,
        *,
        look_back: int,
        horizon: int,
        patch: int,
        identities: int,
        cycles: Sequence[str],
        dim: int,
        heads: int,
        layers: int,
        dropout: float,
        channels: bool,
        window: int | None,
        far: int,
        covariates: int = 0,
        attributes: int = 0,
    ) -> None:
        super().__init__()
        if look_back % patch:
            raise ValueError(f"look_back {look_back} is not a multiple of patch {patch}")
        self.patch, self.horizon = patch, horizon
        self.past_tokens, self.future_tokens = look_back // patch, whole_patches(horizon, patch) // patch
        self.embed = nn.Linear(2 * patch, dim)
        self.waves = nn.Linear(2 * len(cycles), dim, bias=False) if cycles else None
        self.bins = nn.ModuleList(nn.Embedding(CYCLES[name].values, dim) for name in cycles)
        self.identity = nn.Embedding(identities + 1, dim)
        self.place = nn.Parameter(torch.zeros(self.past_tokens + self.future_tokens, dim))
        self.context = nn.Linear(1, dim)
        for table in (*self.bins, self.identity):
            nn.init.normal_(table.weight, std=0.02)
        nn.init.normal_(self.place, std=0.02)
        self.around = nn.Linear(2 * patch * covariates, dim, bias=False) if covariates else None
        self.static = nn.Linear(attributes, dim, bias=False) if attributes else None
        for added in (self.around, self.static):
            if added is not None:
                nn.init.normal_(added.weight, std=0.02)
        self.input_dropout = nn.Dropout(dropout)

        def block() -> TransformerBlock:
            return TransformerBlock(dim, heads, mlp_ratio=2.0, dropout=dropout)

        self.time = nn.ModuleList(block() for _ in range(layers))
        self.across = nn.ModuleList(block() for _ in range(layers)) if channels else None
        self.mask: Mask | None = None
        if window is not None:
            # Half of the heads look at what is near, half at the same phase of earlier and later periods.
            patterns = [Window(window, window), Dilated(window, far)]
            self.mask = PerHead(patterns) if heads % 2 == 0 else patterns[0] | patterns[1]
        self.norm = nn.LayerNorm(dim)
        self.point = nn.Linear(dim, patch, bias=False)
        self.quantiles = nn.Linear(dim, patch * len(LEVELS), bias=False)
        # Gates per block of the horizon and feature, for the point and for the quantiles. At zero the linear path
        # stands alone. A single number per block would be a saddle: a random head's output is uncorrelated with
        # what is missing, so the number would hardly leave zero.
        self.gate = nn.Parameter(torch.zeros(2, self.future_tokens, dim))

    def forward(
        self,
        past: Tensor,
        mask: Tensor,
        linear: Tensor,
        waves: Tensor,
        bins: Tensor,
        identity: Tensor,
        context: Tensor,
        around: Tensor | None = None,
        around_mask: Tensor | None = None,
        static: Tensor | None = None,
    ) -> Tensor:
        """Corrections ``(batch, channels, horizon, 6)``: point, median shift and four log gaps, in local units.

        Args:
            past: ``(batch, channels, look_back)``, zero where missing.
            mask: same shape, 1 where observed.
            linear: ``(batch, channels, horizon)``, the linear forecast in the same units.
            waves: ``(batch, tokens, 2 * cycles)`` at the first step of each token, past and future.
            bins: ``(batch, tokens, cycles)``.
            identity: ``(batch, channels)``; 0 is an unknown series.
            context: ``(batch, channels, 1)``, log of the local scale.
            around: ``(batch, covariates, tokens * patch)``, past and future, zero where not known.
            around_mask: same shape, 1 where known.
            static: ``(batch, channels, attributes)``.
        """
        batch, channels, _ = past.shape
        filler = self.future_tokens * self.patch - self.horizon
        future = nn.functional.pad(linear, (0, filler))
        values = torch.cat([past, future], -1)
        seen = torch.cat([mask, torch.zeros_like(future)], -1)
        tokens = torch.stack([values, seen], 2)
        x = self.embed(rearrange(tokens, "b c two (n p) -> b c n (two p)", p=self.patch))
        time = self.place
        if self.waves is not None:
            time = time + self.waves(waves)
            for column, table in enumerate(self.bins):
                time = time + table(bins[..., column])
            time = time.unsqueeze(1)
        if self.around is not None and around is not None and around_mask is not None:
            patches = torch.stack([around, around_mask], 2)
            patches = rearrange(patches, "b c two (n p) -> b 1 n (c two p)", p=self.patch)
            time = time + self.around(patches)
        who = self.identity(identity) + self.context(context)
        if self.static is not None and static is not None:
            who = who + self.static(static)
        x = x + time + who.unsqueeze(2)
        x = self.input_dropout(x)
        for depth, block in enumerate(self.time):
            x = block(rearrange(x, "b c n d -> (b c) n d"), self.mask)
            x = rearrange(x, "(b c) n d -> b c n d", b=batch)
            if self.across is not None and channels > 1:
                x = self.across[depth](rearrange(x, "b c n d -> (b n) c d"))
                x = rearrange(x, "(b n) c d -> b c n d", b=batch)
        x = self.norm(x[:, :, self.past_tokens :])
        point = rearrange(self.point(x * self.gate[0]), "b c n p -> b c (n p) 1")
        quantiles = rearrange(self.quantiles(x * self.gate[1]), "b c n (p o) -> b c (n p) o", p=self.patch)
        return torch.cat([point, quantiles], -1)[:, :, : self.horizon]


class ForecastModel(nn.Module, PyTorchModelHubMixin):
    """Point forecast and quantiles for every channel and step; see the module's first lines.

    Args:
        series: names of the series, in the order of the identities.
        look_back, horizon, patch, period: in rows.
        trailing: rows over which windows are centred.
        cycles: calendar cycles.
        frequency: pandas' name of the sampling step, ``months=1`` for the same day of each month.
        zone: time zone of the training rows, or None.
        by_clock: the rows are regular on the clock of the zone, as days are; their times are without it here.
        dim, heads, layers, dropout, channels, window: of each attention path.
        far: rows from one token that a far head of them sees to the next, see ``Plan.far``.
        members: how many attention paths are averaged.
        covariates: what is known besides the series, as ``Covariates.to_config`` has it; None for nothing.

    What is not a weight (the float64 linear map, scaler, calibration, tail of the training rows) is in
    ``artifacts``, on the CPU, and is saved beside the weights in ``artifacts.safetensors``.
    """

    residual_scale: Tensor
    spread: Tensor
    attention_weight: Tensor

    def __init__(
        self,
        *,
        series: list[str],
        look_back: int,
        horizon: int,
        patch: int,
        period: int,
        trailing: int,
        cycles: list[str],
        frequency: str,
        far: int,
        zone: str | None = None,
        by_clock: bool = False,
        dim: int = 32,
        heads: int = 4,
        layers: int = 2,
        dropout: float = 0.1,
        channels: bool = True,
        window: int | None = None,
        members: int = 1,
        covariates: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.covariates = Covariates.from_config(covariates)
        self.series, self.look_back, self.horizon = list(series), look_back, horizon
        self.patch, self.period, self.trailing = patch, period, trailing
        self.cycles, self.frequency, self.zone, self.by_clock = list(cycles), frequency, zone, by_clock
        self.paths = nn.ModuleList(
            AttentionPath(
                look_back=look_back,
                horizon=horizon,
                patch=patch,
                identities=len(series),
                cycles=cycles,
                dim=dim,
                heads=heads,
                layers=layers,
                dropout=dropout,
                channels=channels and len(series) > 1,
                window=window,
                far=far // patch,
                covariates=len(self.covariates.names),
                attributes=len(self.covariates.attributes),
            )
            for _ in range(members)
        )
        # Residuals of the linear path on validation: their size per series, and the shape of their quantiles per
        # step (median shift; gaps from the median to 10%, from there to 2.5%, to 90%, to 97.5%).
        self.register_buffer("residual_scale", torch.ones(len(series) + 1))
        self.register_buffer("spread", torch.tensor([0.0, 1.28, 0.68, 1.28, 0.68]).repeat(horizon, 1))
        self.register_buffer("attention_weight", torch.ones(()))
        self.artifacts: dict[str, Tensor] = {}

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Forecasts relative to each window's centre, in standardised units.

        Args:
            batch: what :class:`mha_apps.forecast.inputs.Inputs` makes.

        Returns:
            ``(batch, channels, horizon, 6)``: the mean and the five quantiles of ``LEVELS``, never crossing. In
            training mode one such tensor per member, stacked in front.
        """
        return self.heads(batch, attends=self.training or bool(self.attention_weight))

    def heads(self, batch: dict[str, Tensor], *, attends: bool) -> Tensor:
        """:meth:`forward` with or without the attention path: a graph that is exported cannot look at its weight."""
        scale = self.residual_scale[batch["identity"]].unsqueeze(-1)
        power = (batch["past"].square() * batch["mask"]).sum(-1, keepdim=True)
        local = (power / batch["mask"].sum(-1, keepdim=True).clamp_min(1.0) + scale.square()).sqrt()
        if not attends:
            return self._assemble(batch["linear"], scale, local, None)
        each = [
            self._assemble(
                batch["linear"],
                scale,
                local,
                path(
                    batch["past"] / local,
                    batch["mask"],
                    batch["linear"] / local,
                    batch["waves"],
                    batch["bins"],
                    batch["identity"],
                    local.log(),
                    *(batch.get(name) for name in ("around", "around_mask", "static")),
                ).float(),
            )
            for path in self.paths
        ]
        # The mean of sorted quantiles is sorted.
        return torch.stack(each) if self.training else torch.stack(each).mean(0)

    def _assemble(self, linear: Tensor, scale: Tensor, local: Tensor, correction: Tensor | None) -> Tensor:
        base = self.spread * scale.unsqueeze(-1)  # (batch, channels, horizon, 5)
        if correction is not None:
            correction = self.attention_weight * correction
        if correction is None:
            point, median, gaps = linear, linear + base[..., 0], base[..., 1:]
        else:
            point = linear + local * correction[..., 0]
            median = point + base[..., 0] + local * correction[..., 1]
            gaps = base[..., 1:] * correction[..., 2:].clamp(-3.0, 3.0).exp()
        low, high = median - gaps[..., 0], median + gaps[..., 2]
        return torch.stack([point, low - gaps[..., 1], low, median, high, high + gaps[..., 3]], -1)

    @torch.no_grad()
    def set_spread(self, residuals: Tensor) -> None:
        """Start the quantiles from the linear path's residuals ``(windows, series, horizon)``, NaN where unknown."""
        known = torch.isfinite(residuals)
        power = torch.where(known, residuals, 0.0).square().sum((0, 2)) / known.sum((0, 2)).clamp_min(1)
        scale = power.sqrt()
        usable = scale[known.any(0).any(-1)]
        typical = usable.median() if usable.numel() else torch.ones(())
        floor = 1e-3 * typical.clamp_min(1e-3)
        scale = torch.where(known.any(0).any(-1), scale, typical).clamp_min(floor)
        self.residual_scale[1:] = scale
        self.residual_scale[UNKNOWN] = scale.median()
        shape = (residuals / scale[:, None]).movedim(-1, 0).flatten(1)  # (horizon, windows * series)
        if not bool(known.any()):
            return
        # Steps are pooled with their neighbours until the outer quantile rests on some tens of errors.
        enough = 400
        reach = 0
        while (2 * reach + 1) * shape.shape[1] < enough and reach < self.horizon:
            reach += 1
        levels = torch.tensor(LEVELS, dtype=shape.dtype)
        for step in range(self.horizon):
            near = shape[max(0, step - reach) : step + reach + 1].flatten()
            near = near[torch.isfinite(near)]
            if near.numel() == 0:
                continue
            stride = max(1, near.numel() // 100_000)
            q = torch.quantile(near[::stride], levels)
            gaps = torch.stack([q[2] - q[1], q[1] - q[0], q[3] - q[2], q[4] - q[3]]).clamp_min(1e-2)
            self.spread[step] = torch.cat([q[2:3], gaps]).to(self.spread.dtype)

    # Saving ----------------------------------------------------------------------------------------------------

    def _save_pretrained(self, save_directory: Path) -> None:
        super()._save_pretrained(save_directory)
        tensors = {name: tensor.contiguous() for name, tensor in self.artifacts.items()}
        save_file(tensors | {"format": torch.tensor(FORMAT)}, str(Path(save_directory) / "artifacts.safetensors"))

    @classmethod
    def _from_pretrained(cls, *, model_id: str, map_location: str = "cpu", **keywords: Any) -> ForecastModel:
        folder = Path(model_id)

        def find(name: str) -> str:
            if folder.is_dir():
                return str(folder / name)
            from huggingface_hub import hf_hub_download

            options = ("revision", "cache_dir", "force_download", "token", "local_files_only")
            return hf_hub_download(model_id, name, **{key: keywords[key] for key in options if key in keywords})

        artifacts = load_file(find("artifacts.safetensors"))
        found = int(artifacts.pop("format", torch.tensor(1)))
        if found != FORMAT:
            raise InputError(
                f"{model_id}: another version of mha_apps saved this model, in format {found} and not {FORMAT}, and "
                "its forecasts would be wrong here; train again"
            )
        sizes = {key: value for key, value in keywords.items() if key in inspect.signature(cls).parameters}
        model = cls(**sizes)
        load_model(model, find("model.safetensors"), device=map_location)
        model.artifacts = artifacts
        return model.eval()

    @property
    def meters(self) -> Tensor:
        """Which series are meters, whose rows are what they rose by: ``(series,)`` bool."""
        return self.artifacts.get("meter", torch.zeros(len(self.series), dtype=torch.bool))

    @property
    def step(self) -> BaseOffset:
        """From one row to the next."""
        return offset_of(self.frequency)

    def time(self, nanoseconds: int) -> pd.Timestamp:
        """A time in ``artifacts`` as those of the rows are; NaT stays."""
        if self.zone is None or self.by_clock:
            return pd.Timestamp(nanoseconds, unit="ns")
        return pd.Timestamp(nanoseconds, unit="ns", tz="UTC").tz_convert(self.zone)

    def rows_seen(self, index: pd.DatetimeIndex) -> int:
        """How many of the times in ``index``, which ascend, are not after the last row that the model was fitted on."""
        return int((index.as_unit("ns").asi8 <= int(self.artifacts["known_until"])).sum())

    def check_artifacts(self) -> None:
        """Raise ValueError where what lies beside the weights cannot belong to them, or says no time."""
        series, horizon = len(self.series), self.horizon
        shapes: dict[str, tuple[int | None, ...]] = {
            "linear": (self.look_back, horizon),
            "mean": (series,),
            "scale": (series,),
            "known_until": (),
            "offset": (series, horizon, 4),
            "pace": (series, horizon, 4),
            "tail": (None, series),
            "tail_end": (),
        }
        covariates = self.covariates
        if covariates.names:
            count = len(covariates.names)
            known = sum(covariates.known)
            shapes |= {"around_mean": (count,), "around_scale": (count,), "knots": (known, None)}
        if covariates.columns:
            count = len(covariates.columns)
            shapes |= {"tail_around": (None, count), "around_low": (count,), "around_high": (count,)}
        if "drivers" in self.artifacts:
            drivers = count_drivers(self.artifacts["knots"], 2 * ("hour" in self.cycles)) if covariates.names else 0
            shapes["drivers"] = (series + 1, len(blocks_of(horizon)), drivers)
        if "tail_ahead" in self.artifacts:
            shapes["tail_ahead"] = (None, len(covariates.future))
        if covariates.attributes:
            shapes["static"] = (len(covariates.described), len(covariates.attributes))
        if "cross_weights" in self.artifacts:
            features = None if "cross_mean" not in self.artifacts else self.artifacts["cross_mean"].shape[0]
            shapes |= {"cross_mean": (features,), "cross_weights": (features, series, horizon)}
        if "meter" in self.artifacts:
            shapes |= {"meter": (series,), "tail_reading": (series,), "tail_read_at": (series,)}
        if "reversion" in self.artifacts:
            shapes["reversion"] = (horizon,)
        if "blend" in self.artifacts:
            shapes["blend"] = (series + 1, None, 2)
        for name, shape in shapes.items():
            if name not in self.artifacts:
                raise ValueError(f"artifacts.safetensors holds no {name}")
            found = tuple(self.artifacts[name].shape)
            same = len(found) == len(shape) and all(b is None or a == b for a, b in zip(found, shape, strict=True))
            if not same or (not found and self.artifacts[name].dtype != torch.int64):
                raise ValueError(f"artifacts.safetensors holds a {name} of shape {found}, not {shape}")
        for name, least, most in (("trailing", 1, self.look_back), ("period", 1, None)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least or (most is not None and value > most):
                raise ValueError(f"config.json gives {name} as {value!r}")
        pd.date_range("2001-01-01", periods=2, freq=self.step).tz_localize("UTC").tz_convert(self.zone)


def load_folder(folder: Path, remedy: str, *, whole: bool = True) -> ForecastModel:
    """The model that ``save_pretrained`` put into ``folder``, in eval mode on the CPU.

    Without ``whole`` it may lack what its last stages add: calibration and tail.

    Raises:
        InputError: a file of it is missing, damaged, or of another model, and the line ends in ``remedy``; or another
            version saved it.
    """
    # The hub's mixin builds a model of defaults where the sizes are missing.
    missing = next((name for name in FILES if not (folder / name).is_file()), None)
    if missing is not None:
        raise InputError(f"{folder}: {missing} is missing; {remedy}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the mixin prints where it loads from
            model = ForecastModel.from_pretrained(str(folder), local_files_only=True)
        if whole:
            model.check_artifacts()
    except InputError:
        raise
    except Exception as error:  # whatever a damaged or edited file leads to
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(f"{folder}: the model cannot be loaded ({reason}); {remedy}") from error
    return model.eval()
