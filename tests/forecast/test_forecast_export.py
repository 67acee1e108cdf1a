"""A forecaster handed on: the ONNX graph says what predict says, and the card says how to feed it."""

import copy
import importlib
import json
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from mha_apps.cli import main
from mha_apps.errors import InputError
from mha_apps.forecast import Forecaster, ForecastRecipe, predict_frame, train
from mha_apps.forecast.calendar import CYCLES, encode
from mha_apps.forecast.cross import Cross, summarise
from mha_apps.forecast.drivers import count_drivers
from mha_apps.forecast.export import FORMULAS, OnnxForecaster, _write_onnx, export, feeds, model_card
from mha_apps.forecast.limits import LastReading
from mha_apps.forecast.linear import blocks_of
from mha_apps.forecast.model import load_folder
from mha_apps.forecast.plan import make_plan
from mha_apps.forecast.predict import forecast_frame, tail_of
from mha_apps.forecast.trainer import fit_trees, make_inputs

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SMALL = {"horizon": 5, "steps": 2, "dim": 8, "heads": 2, "layers": 1, "trees": False}


def frame_of(series=3, rows=400, seed=0, freq="h"):
    rng = np.random.default_rng(seed)
    daily = np.sin(2 * np.pi * np.arange(rows) / 24)
    columns = {f"s{k}": 10.0**k % 997 + (k + 1) * daily + 0.3 * rng.normal(size=rows) for k in range(series)}
    return pd.DataFrame(columns, pd.date_range("2024-01-01", periods=rows, freq=freq))


def with_attention(model):
    """The same with a network whose corrections are not small."""
    model = copy.deepcopy(model)
    torch.manual_seed(0)
    for path in model.paths:
        torch.nn.init.normal_(path.gate, std=0.3)
    model.attention_weight.fill_(0.7)
    return model


def with_everything(model, frame):
    """The same with a correction across channels, a return to the mean, a blend with trees, and bounds."""
    model = with_attention(model)
    draw = torch.Generator().manual_seed(0)
    series, horizon, look_back = len(model.series), model.horizon, model.look_back
    features = series * summarise(torch.zeros(1, look_back), torch.ones(1, look_back)).shape[-1]
    cross = Cross(
        torch.randn(features, generator=draw, dtype=torch.float64),
        0.05 * torch.randn(features, series, horizon, generator=draw, dtype=torch.float64),
    )
    plan = make_plan(frame, ForecastRecipe(csv="", horizon=horizon))
    model.artifacts |= {
        "cross_mean": cross.mean,
        "cross_weights": cross.weights,
        "reversion": torch.linspace(-0.1, -0.3, horizon, dtype=torch.float64),
        "blend": 0.3 * torch.rand(series + 1, len(blocks_of(horizon)), 2, generator=draw),
        "lower": torch.tensor([*[-torch.inf] * (series - 1), 9.0, -torch.inf], dtype=torch.float64),
        "upper": torch.full((series + 1,), torch.inf, dtype=torch.float64),
    }
    model.artifacts |= fit_trees(make_inputs(model, frame), plan, 0).tensors()
    return model


def run_graph(path, given):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, given)


def agree(model, path, frames):
    """Whether the graph says of each frame what the model says, to 1e-4 of each sensor's deviation."""
    mean, quantiles = run_graph(path, feeds(model, frames))
    unit = model.artifacts["scale"].numpy()[:, None]
    for number, frame in enumerate(frames):
        table = forecast_frame(model, frame)
        for found, column in ((mean, "mean"), (quantiles[..., 0], "lo-95"), (quantiles[..., 3], "hi-80")):
            wanted = table[column].to_numpy().reshape(len(model.series), -1)
            np.testing.assert_allclose(found[number] / unit, wanted / unit, atol=1e-4, rtol=0)


def windows_of(model, frame):
    """Rows to continue: whole ones, with holes, and fewer than a look-back."""
    whole = frame.iloc[-model.look_back :]
    holes = whole.mask(np.random.default_rng(1).uniform(size=whole.shape) < 0.2)
    return [whole, holes, frame.iloc[-model.look_back // 3 :]]


@pytest.fixture(scope="module")
def fitted():
    return Forecaster(**SMALL).fit(frame_of())


def test_the_graph_of_a_model_with_everything_says_what_predict_says(fitted, tmp_path):
    model = with_everything(fitted.model_, frame_of())
    plain = forecast_frame(fitted.model_, frame_of())
    assert (forecast_frame(model, frame_of())["mean"] - plain["mean"]).abs().max() > 0.1
    difference = _write_onnx(OnnxForecaster(model).eval(), tmp_path / "model.onnx")
    assert difference < 1e-4
    agree(model, tmp_path / "model.onnx", windows_of(model, frame_of()))


@pytest.mark.slow
def test_series_of_several_groups_are_each_in_their_place(tmp_path):
    frame = frame_of(series=19)
    model = with_attention(Forecaster(**SMALL, channels=False).fit(frame).model_)
    _write_onnx(OnnxForecaster(model).eval(), tmp_path / "model.onnx")
    agree(model, tmp_path / "model.onnx", windows_of(model, frame))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "two members and windows", "one series", "no cycle", "seasonal naive"])
def test_graphs_of_other_models_agree_too(kind, tmp_path):
    frame = frame_of(series=1 if kind == "one series" else 2, rows=60 if kind == "no cycle" else 400)
    frame.index = pd.date_range("2020-01-01", periods=len(frame), freq="YS") if kind == "no cycle" else frame.index
    model = Forecaster(**SMALL | {"members": 2 if "two" in kind else 1}).fit(frame).model_
    if kind == "two members and windows":
        recipe = ForecastRecipe(csv=str(tmp_path / "t.csv"), **SMALL, window=2, members=2)
        frame.rename_axis("time").to_csv(tmp_path / "t.csv")
        model = load_folder(train(recipe, out=tmp_path / "run").model_dir, "")
    if kind == "seasonal naive":
        model.artifacts["blend"] = torch.full((3, len(blocks_of(5)), 2), 0.4)
        model.artifacts["blend"][..., 1] = 0.0
    elif kind != "linear":
        model = with_attention(model)
    _write_onnx(OnnxForecaster(model).eval(), tmp_path / "model.onnx")
    agree(model, tmp_path / "model.onnx", windows_of(model, frame))


def test_the_card_tells_the_calendar_as_the_model_was_given_it(fitted):
    index = pd.date_range("2024-02-28 22:40", periods=500, freq="7min", tz="Europe/Berlin")
    hour = (index.hour + index.minute / 60 + index.second / 3600) / 24
    told = {
        "minute": (index.minute + index.second / 60) / 60,
        "hour": hour,
        "weekday": (index.dayofweek + hour) / 7,
        "monthday": (index.day - 1) / index.days_in_month,
        "yearday": (index.dayofyear - 1 + hour) / np.where(index.is_leap_year, 366, 365),
        "month": (index.month - 1) / 12,
    }
    assert list(told) == list(FORMULAS)
    for name, formula in FORMULAS.items():
        np.testing.assert_allclose(eval(formula, {"t": index, "hour": hour}), told[name], atol=1e-12)
    waves, bins = encode(index, list(told))
    for k, (name, phase) in enumerate(told.items()):
        np.testing.assert_allclose(waves[:, 2 * k], np.cos(2 * np.pi * phase), atol=1e-6)
        np.testing.assert_allclose(waves[:, 2 * k + 1], np.sin(2 * np.pi * phase), atol=1e-6)
        np.testing.assert_array_equal(bins[:, k], np.floor(CYCLES[name].values * phase + 1e-6))


def test_one_table_is_a_batch_of_one_wide_or_long_in_any_order_of_its_columns(fitted):
    frame = frame_of().iloc[-fitted.model_.look_back :]
    wanted = feeds(fitted.model_, [frame])
    long = frame.melt(ignore_index=False, var_name="unique_id", value_name="y").reset_index(names="ds")
    for given in (frame, frame[::-1].to_period("h").to_timestamp(), frame[["s2", "s0", "s1"]], long, (frame,)):
        found = feeds(fitted.model_, given)
        assert list(found) == list(wanted)
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    for given, told in (
        (frame.rename(columns=lambda name: f"x{name}"), "none of its columns is a sensor"),
        (frame.asfreq("2h"), "its rows are 7200 s apart"),
        (frame.reset_index(drop=True), "its index is no DatetimeIndex"),
        ([frame["s0"]], "is a Series, not a DataFrame"),
    ):
        with pytest.raises(InputError, match=told):
            feeds(fitted.model_, given)
    with pytest.raises(InputError, match="2 tables and 1 of what is ahead"):
        feeds(fitted.model_, [frame, frame], [None])
    with pytest.warns(UserWarning, match="'s1' of the run not there"):
        assert np.isnan(feeds(fitted.model_, frame.drop(columns="s1"))["past"][0, 1]).all()


def test_a_run_is_exported_on_the_command_line_with_a_card_that_tells_how_to_use_it(tmp_path, capsys):
    frame_of().rename_axis("time").to_csv(tmp_path / "plant.csv")
    recipe = ForecastRecipe(csv=str(tmp_path / "plant.csv"), horizon=5, attention=False, trees=False)
    run = train(recipe, out=tmp_path / "run")
    assert main(["forecast", "export", str(run.path), "--no-onnx", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == ["README.md", "artifacts.safetensors", "config.json", "model.safetensors"]
    moved = load_folder(tmp_path / "run" / "export", "")
    pd.testing.assert_frame_equal(forecast_frame(moved, tail_of(moved)), forecast_frame(moved, frame_of()), rtol=1e-9)
    card = (tmp_path / "run" / "export" / "README.md").read_text()
    assert "model.onnx" not in card
    assert "`s0`, `s1`, `s2`" in card
    told = model_card(run, moved, onnx=True)
    for word in ("`past`", "`waves`", "`bins`", "`forecast`", "| hour |", str(moved.look_back)):
        assert word in told


def run_snippets(folder, monkeypatch):
    """Execute the Python of a card where it lies, as a reader would; the names that each snippet leaves behind."""
    monkeypatch.chdir(folder)
    found = []
    for block in re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL):
        found.append({})
        exec(compile(block, "README.md", "exec"), found[-1])
    return found


def test_the_snippets_of_the_card_run_as_they_are_written_and_feed_the_graph_as_predict_does(tmp_path, monkeypatch):
    frame = frame_of()
    frame.index = frame.index.tz_localize("UTC").tz_convert("Europe/Berlin")
    frame.rename_axis("time").to_csv(tmp_path / "plant.csv")
    recipe = ForecastRecipe(
        csv=str(tmp_path / "plant.csv"), tz="Europe/Berlin", horizon=5, attention=False, trees=False, min=("s0=-0.5",)
    )
    run = train(recipe, out=tmp_path / "run")
    export(run)
    plain, graph = run_snippets(run.path / "export", monkeypatch)
    model = plain["model"]
    pd.testing.assert_frame_equal(plain["rows"], tail_of(model))
    wanted = feeds(model, tail_of(model))
    np.testing.assert_array_equal(graph["waves"][None], wanted["waves"])
    np.testing.assert_array_equal(graph["bins"][None], wanted["bins"])
    np.testing.assert_array_equal(graph["past"], wanted["past"])
    table = forecast_frame(model, tail_of(model))
    unit = model.artifacts["scale"].numpy()[:, None]
    means = table["mean"].to_numpy().reshape(3, -1)
    np.testing.assert_allclose(graph["forecast"][0] / unit, means / unit, atol=1e-4, rtol=0)
    card = (run.path / "export" / "README.md").read_text()
    assert "`s0` from -0.5 to inf" in card
    assert re.search(r"^- plant\.csv: .* values of .s0. are below --min -0\.5", card, re.MULTILINE)
    assert str(tmp_path) not in card


def test_the_card_of_meters_and_covariates_says_what_they_are_and_its_snippet_runs(tmp_path, monkeypatch, capsys):
    frame = frame_of(series=4)
    frame["s1"] = frame["s1"].abs().cumsum()
    frame.rename_axis("time").to_csv(tmp_path / "plant.csv")
    flags = {"target": ("s0", "s1"), "past": ("s2",), "future": ("s3",), "counter": ("s1",), "holidays": "DE"}
    recipe = ForecastRecipe(csv=str(tmp_path / "plant.csv"), horizon=5, attention=False, trees=False, **flags)
    run = train(recipe, out=tmp_path / "run")
    assert export(run)["onnx_difference"] < 1e-4
    names, graph = run_snippets(run.path / "export", monkeypatch)
    assert names["rows"]["s1"].iloc[-1] == pytest.approx(frame["s1"].iloc[-1])
    assert "s1" in capsys.readouterr().out
    given = feeds(names["model"], [names["rows"]])
    np.testing.assert_allclose(graph["past"], given["past"], atol=1e-9)
    np.testing.assert_array_equal(graph["past_covariates"], given["past_covariates"])
    assert graph["future_covariates"].shape == given["future_covariates"].shape
    np.testing.assert_array_equal(graph["future_covariates"][:, 0], given["future_covariates"][:, 0])
    card = (run.path / "export" / "README.md").read_text()
    rows = names["model"].look_back + 24
    for words in (
        "Meters: `s1`.", "up to its last row: `s2`", "rows to forecast too: `s3`", "Holidays of DE",
        "of the meters `s1` what they rose by in each row since the reading before, on average",
        "they are what they will have risen by",
        f"`past_covariates` (batch, 1, {rows})", f"`future_covariates` (batch, 2, {rows + 5})",
        "`s3`, `holidays DE`, in this order", "is 1 in the rows of a holiday's date",
    ):  # fmt: skip
        assert words in " ".join(card.split())


def test_an_export_goes_into_no_folder_with_files_of_the_same_names_that_no_export_wrote(tmp_path, run_of_plant):
    out = tmp_path / "project"
    out.mkdir()
    for name in ("README.md", "config.json", "model.onnx"):
        (out / name).write_text("mine")
        with pytest.raises(InputError, match=rf"{name}: no export wrote it; .* --force"):
            export(run_of_plant, out, onnx=False)
        assert [path.name for path in out.iterdir()] == [name]
        assert (out / name).read_text() == "mine"
        (out / name).unlink()


def test_an_export_without_the_graph_leaves_no_graph_of_another_beside_its_weights(tmp_path, run_of_plant):
    out = tmp_path / "out"
    export(run_of_plant, out, onnx=False)
    (out / "model.onnx").write_text("of another run")
    with pytest.warns(UserWarning, match=r"model\.onnx: was of another export, and is removed"):
        found = export(run_of_plant, out, onnx=False)
    assert sorted(path.name for path in out.iterdir()) == found["files"]


def test_an_export_that_fails_leaves_nothing_behind(tmp_path, run_of_plant, monkeypatch):
    def disagree(graph, path):
        path.write_text("half")
        raise InputError("model.onnx: onnxruntime differs")

    monkeypatch.setattr(importlib.import_module("mha_apps.forecast.export"), "_write_onnx", disagree)
    with pytest.raises(InputError, match="differs"):
        export(run_of_plant, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def run_of_plant(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plant")
    frame_of().rename_axis("time").to_csv(folder / "plant.csv")
    recipe = ForecastRecipe(csv=str(folder / "plant.csv"), horizon=5, attention=False, trees=False)
    return train(recipe, out=folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True])
def test_the_graph_of_a_model_with_covariates_and_meters_says_what_predict_says(tmp_path, each):
    frame = frame_of(series=6, rows=500)
    frame["s1"] = frame["s1"].abs().cumsum()
    roles = {"target": ("s0", "s1", "s2"), "past": ("s3",), "future": ("s4", "s5"), "holidays": "DE"}
    model = Forecaster(**SMALL, **roles, counter=("s1",)).fit(frame).model_
    rises = frame.assign(s1=frame["s1"].diff())
    model = with_around(with_everything(model, rises), each=each)
    model.check_artifacts()
    assert _write_onnx(OnnxForecaster(model).eval(), tmp_path / "model.onnx") < 1e-4

    rows, ahead = frame.iloc[:-5], frame[["s4", "s5"]].iloc[-5:]
    mean, _ = run_graph(tmp_path / "model.onnx", feeds(model, [rows], [ahead]))
    last = {"s1": LastReading(rows["s1"].iloc[-1], rows.index[-1])}
    table = forecast_frame(model, rises.iloc[:-5], ahead=ahead, last=last, strict=False)
    wanted = table.pivot(index="unique_id", columns="ds", values="mean").to_numpy()
    mean[0, 1] += rows["s1"].iloc[-1]
    unit = model.artifacts["scale"].numpy()[:, None]
    np.testing.assert_allclose(mean[0] / unit, wanted / unit, atol=1e-4, rtol=0)


def test_the_graph_of_a_meter_with_gaps_says_what_predict_says_from_a_reading_on_and_takes_no_other(tmp_path):
    frame = frame_of(series=2, rows=600)
    frame["s1"] = frame["s1"].abs().cumsum().where(np.arange(600) % 2 == 1)
    frame.iloc[430:460, 1] = np.nan
    model = Forecaster(**SMALL, counter=("s1",), attention=False).fit(frame.iloc[:500]).model_
    assert _write_onnx(OnnxForecaster(model).eval(), tmp_path / "model.onnx") < 1e-4
    for rows in (frame.iloc[:500], frame.iloc[:480]):
        mean, quantiles = run_graph(tmp_path / "model.onnx", feeds(model, rows))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = predict_frame(model, rows)
        for name, found in (("mean", mean[0]), ("hi-80", quantiles[0, ..., 3])):
            wanted = table[name].to_numpy().reshape(2, -1)
            found[1] += rows["s1"].iloc[-1]
            np.testing.assert_allclose(found / wanted, 1, rtol=1e-5)
    with pytest.raises(InputError, match=r"'s1' without a reading in the last row .*; end it at their last reading"):
        feeds(model, frame.iloc[:499])
    assert np.isnan(feeds(model, frame[["s0"]].iloc[:499])["past"][0, 1]).all()


def with_around(model, *, each):
    """The same with drivers, and with corrections by covariates for the channels together or for each of them."""
    draw = torch.Generator().manual_seed(1)
    series, horizon = len(model.series), model.horizon
    names, known = model.covariates.columns, model.covariates.known
    drivers = count_drivers(model.artifacts["knots"], 2 * ("hour" in model.cycles))
    assert drivers > sum(known) * 6
    stretches = summarise(torch.zeros(1, model.look_back), torch.ones(1, model.look_back)).shape[-1]
    features = stretches * (len(names) + series * (not each))
    model.artifacts |= {
        "drivers": 0.2 * torch.randn(series + 1, len(blocks_of(horizon)), drivers, generator=draw),
        "cross_mean": torch.randn(features, generator=draw, dtype=torch.float64),
        "cross_weights": 0.05 * torch.randn(features, series, horizon, generator=draw, dtype=torch.float64),
    } | ({"cross_each": torch.tensor(True)} if each else {})
    return model


def test_a_graph_of_more_series_than_it_takes_is_refused_in_one_line(fitted, monkeypatch):
    monkeypatch.setattr(importlib.import_module("mha_apps.forecast.export"), "MOST_SERIES", 2)
    with pytest.raises(InputError, match="3 series, and the graph takes 2 at most; do without with --no-onnx"):
        OnnxForecaster(fitted.model_)
