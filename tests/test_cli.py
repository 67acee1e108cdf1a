"""The command line: light to start, legible, and one clear line for whatever cannot be used."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from mha_apps.cli import VERBS, Answer, main
from mha_apps.training.clock import seconds_counted

LEAVES = [" ".join([subject, verb]).strip() for subject, verbs in VERBS.items() for verb in verbs]


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mha_apps", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"COLUMNS": "80", "OMP_NUM_THREADS": "1"},
    )


def test_help_does_not_import_torch():
    code = "import sys\nfrom mha_apps.cli import main\n"
    code += "for words in ([], ['vit'], ['vit', 'train', '--help'], ['forecast', 'train', '--help']):\n"
    code += "    main(words)\n"
    code += "print(sorted({'torch', 'pandas', 'matplotlib', 'sklearn', 'timm'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", ["", *VERBS, *LEAVES])
def test_every_help_fits_80_columns_and_says_what_each_flag_is_for(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: mha-apps")
    assert max(map(len, text.splitlines())) <= 80
    assert "None" not in text.replace("None lets", "")
    if words in LEAVES:
        flags = [line for line in text.splitlines() if line.startswith("  --")]
        assert len(flags) >= 2


@pytest.mark.parametrize("typed", [True, False])
def test_minutes_of_a_command_count_from_the_start_of_its_process(typed, monkeypatch, capsys):
    answer = staticmethod(lambda: Answer({"seconds": seconds_counted()}, ""))
    monkeypatch.setattr(VERBS["cnn"]["compare"], "run", answer)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: time.time() - 3600)
    monkeypatch.setattr(sys, "argv", ["mha-apps", "cnn", "compare", "--json"])
    assert main(None if typed else sys.argv[1:]) == 0
    assert (json.loads(capsys.readouterr().out)["seconds"] >= 3600) == typed


def test_the_versions_agree(capsys):
    import mha_apps

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"mha-apps {mha_apps.__version__}"


def write_parquet_without_labels(folder: Path) -> Path:
    path = folder / "unlabelled.parquet"
    pd.DataFrame({"img": [{"bytes": b"", "path": "a.png"}]}).to_parquet(path)
    return path


def write_csv_without_times(folder: Path) -> Path:
    path = folder / "timeless.csv"
    pd.DataFrame({"a": np.arange(5.5), "b": ["x"] * 6}).to_csv(path, index=False)
    return path


BAD = {
    "an unknown verb": (["vit", "trian"], "did you mean train"),
    "an unknown flag": (["vit", "train", "--epoch", "3"], "--epochs"),
    "a value of the wrong type": (["vit", "train", "--epochs", "many"], "--epochs"),
    "missing images": (["vit", "train", "--data", "{folder}/absent.parquet"], "absent.parquet"),
    "missing images for a cnn": (["cnn", "train", "--data", "{folder}/absent.parquet"], "absent.parquet"),
    "images without labels": (["vit", "train", "--data", "{folder}/unlabelled.parquet"], "label"),
    "a missing csv": (["forecast", "train", "{folder}/absent.csv"], "absent.csv"),
    "a csv without times": (["forecast", "train", "{folder}/timeless.csv"], "timeless.csv"),
    "a negative horizon": (["forecast", "train", "sample", "--horizon", "-3"], "--horizon -3"),
    "an unknown preset": (["vit", "train", "--preset", "enormous"], "enormous"),
    "an unknown gate": (["cnn", "train", "--gate", "cmab"], "cbam"),
    "an unknown model": (["cnn", "train", "--model", "resnet21"], "resnet2"),
    "an unknown recipe": (["vit", "train", "--recipe", "cpu-61m"], "cpu-61m"),
    "no run": (["vit", "evaluate", "{folder}"], "holds no run"),
    "no run to resume": (["forecast", "train", "--resume", "{folder}/none"], "none"),
    "two budgets": (["vit", "train", "--epochs", "1", "--minutes", "2"], "give one budget"),
    "a negative budget": (["cnn", "train", "--minutes", "-2"], "--minutes -2"),
    "a device that is absent": (["vit", "train", "--device", "mps"], "--device mps"),
}


@pytest.mark.parametrize("case", BAD)
def test_input_that_cannot_be_used_ends_in_one_line_and_nothing_is_written(tmp_path, case, capsys, monkeypatch):
    import torch

    if case == "a device that is absent" and torch.backends.mps.is_available():
        pytest.skip("this machine has that device")
    write_parquet_without_labels(tmp_path)
    write_csv_without_times(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    words, expected = BAD[case]
    code = main([word.format(folder=tmp_path) for word in words])
    out, error = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert error.startswith("mha-apps: ")
    assert error.count("\n") == 1
    assert expected in error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_traceback_is_shown_with_debug_only(tmp_path):
    quiet = run("vit", "evaluate", str(tmp_path))
    loud = run("vit", "evaluate", str(tmp_path), "--debug")
    assert quiet.returncode == 2
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


@pytest.mark.parametrize(
    "typed", ["--missing -1 flow=0 -9 --horizon 3", "--missing -1 --horizon 3 --missing=flow=0 -9"]
)
def test_a_flag_of_several_values_takes_them_together_or_one_by_one(typed, monkeypatch):
    given = []
    monkeypatch.setattr(VERBS["forecast"]["train"], "run", lambda verb: given.append(verb.recipe) or Answer({}, ""))
    assert main(["forecast", "train", "plant.csv", *typed.split()]) == 0
    assert (given[0].csv, given[0].missing, given[0].horizon) == ("plant.csv", ("-1", "flow=0", "-9"), 3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A short run of each application, trained through the command line in one process."""
    folder = tmp_path_factory.mktemp("runs")
    for words in (
        ["vit", "train", "--steps", "12"],
        ["cnn", "train", "--steps", "3", "--gate", "se"],
        ["forecast", "train", "sample", "--steps", "2", "--horizon", "24", "--look-back", "48", "--no-trees"],
    ):
        assert main([*words, "--out", str(folder / words[0]), "--json"]) == 0
    return folder


def lastjson_text(capsys) -> dict:
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def test_evaluate_prints_one_json_object_with_top1(runs, capsys):
    for kind in ("vit", "cnn"):
        assert main([kind, "evaluate", str(runs / kind), "--json"]) == 0
        result = lastjson_text(capsys)
        assert 0 <= result["top1"] <= 1
        assert main([kind, "evaluate", str(runs / kind)]) == 0
        assert "top1" in capsys.readouterr().out


def test_predict_names_the_classes_of_files(runs, capsys, tmp_path):
    from PIL import Image

    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "dark.png")
    (tmp_path / "broken.png").write_text("not an image")
    assert main(["vit", "predict", str(runs / "vit"), str(tmp_path), "--json"]) == 0
    rows = lastjson_text(capsys)["rows"]
    assert len(rows) == 2


def test_forecast_predict_writes_the_columns_that_it_promises(runs, capsys, tmp_path):
    out = tmp_path / "next.csv"
    assert main(["forecast", "predict", str(runs / "forecast"), "--out", str(out), "--json"]) == 0
    rows = lastjson_text(capsys)["rows"]
    frame = pd.read_csv(out, parse_dates=["ds"])
    assert list(frame.columns)[:6] == ["unique_id", "ds", "mean", "median", "lo-80", "hi-80"]
    assert len(frame) == len(rows) == 4 * 24
    last = pd.read_csv(Path(__file__).parents[1] / "data" / "weather_jfk_2013.csv")["time"].iloc[-1]
    assert frame["ds"].min() == pd.Timestamp(last) + pd.Timedelta(hours=1)
    assert list((runs / "forecast" / "plots").glob("forecast-*.png"))


def test_forecast_predict_shows_every_sensor_and_leaves_what_is_of_its_own_rows(runs, capsys, tmp_path):
    rows = pd.read_csv(Path(__file__).parents[1] / "data" / "weather_jfk_2013.csv")
    rows.iloc[:-100].to_csv(tmp_path / "earlier.csv", index=False)
    run = runs / "forecast"
    assert main(["forecast", "predict", str(run)]) == 0
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("median (and 80% interval) of each sensor")
    assert [line.split()[0] for line in lines[:4]] == list(rows.columns[1:])
    assert lines[4:] == [f"{run / 'forecast.csv'}: 96 rows", f"plots: {run / 'plots'}"]
    own = {path: path.read_bytes() for path in (*run.glob("*.csv"), *run.glob("plots/*.png"))}
    assert main(["forecast", "predict", str(run), str(tmp_path / "earlier.csv")]) == 0
    told = capsys.readouterr().out.splitlines()[-2:]
    assert told == [f"{run / 'forecast-earlier.csv'}: 96 rows", f"plots: {run / 'plots' / 'earlier'}"]
    assert len(list((run / "plots" / "earlier").glob("forecast-*.png"))) == 4
    assert {path: path.read_bytes() for path in own} == own


def test_forecast_predict_gives_the_probability_of_an_alert(runs, capsys):
    predict = ["forecast", "predict", str(runs / "forecast")]
    assert main([*predict, "--alert", "humidity>50", "--json"]) == 0
    rows = lastjson_text(capsys)["rows"]
    assert len(rows) == 24
    assert all(0 < row["humidity>50"] < 1 for row in rows)
    for words, told in (
        (["--alert", "humidity"], "write SENSOR>NUMBER"),
        (["--alert", "humidity>50", "newer.csv"], "other arguments before --alert"),
        (["--alert"], "names no condition"),
    ):
        assert main([*predict, *words]) == 2
        assert told in capsys.readouterr().err


def test_several_alerts_are_columns_of_text_json_and_csv(runs, capsys, tmp_path):
    both = ["humidity>50", "temperature <= 0.5"]
    ways = ["--alert", *both], ["--alert", both[0], f"--alert={both[1]}"]
    predict = ["forecast", "predict", str(runs / "forecast")]
    for words in ways:
        assert main([*predict, *words, "--json"]) == 0
        rows = lastjson_text(capsys)["rows"]
        assert list(rows[0]) == ["ds", *both]
        assert main([*predict, *words]) == 0
        assert capsys.readouterr().out.splitlines()[0].split() == ["ds", *" ".join(both).split()]
        assert main([*predict, *words, "--out", str(tmp_path / "alerts.csv")]) == 0
        table = pd.read_csv(tmp_path / "alerts.csv")
        assert capsys.readouterr().out.endswith("alerts.csv: 24 rows\n")
        assert table[both].to_dict("records") == [{name: row[name] for name in both} for row in rows]


def test_training_can_be_resumed_with_a_larger_budget(runs, capsys):
    assert main(["cnn", "train", "--resume", str(runs / "cnn"), "--steps", "5", "--json"]) == 0
    assert lastjson_text(capsys)["steps"] == 5


def test_a_run_is_not_overwritten_without_force(runs, capsys):
    assert main(["vit", "train", "--steps", "1", "--out", str(runs / "vit")]) == 2
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "first_of"), [("--dayfirst", "April"), ("--no-dayfirst", "March")])
def test_inspect_reads_days_first_or_months_first_as_it_is_told(tmp_path, monkeypatch, capsys, typed, first_of):
    monkeypatch.chdir(tmp_path)
    order = "0{day}/04/2024,{day}" if typed == "--dayfirst" else "03/0{day}/2024,{day}"
    rows = [order.format(day=day) for day in (1, 2, 3)]
    Path("sensor.csv").write_text("time,level\n" + "\n".join(rows) + "\n")
    assert main(["forecast", "inspect", "sensor.csv", typed, "--json"]) == 0
    report = lastjson_text(capsys)
    assert pd.Timestamp(report["start"]).month_name() == first_of
    assert Path("sensor-series.png").stat().st_size > 1000


def test_inspect_takes_a_negative_number_as_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sensor.csv").write_text(
        "time,level\n" + "\n".join(f"2024-01-0{day},{-1 if day == 4 else day}" for day in range(1, 9))
    )
    assert main(["forecast", "inspect", "sensor.csv", "--missing", "-1", "--json"]) == 0
    assert lastjson_text(capsys)["cells_used"] == 7


def test_an_output_never_replaces_an_input_and_is_refused_before_the_work(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("precious")
    before = sorted((runs / "forecast").rglob("*"))
    for words, expected in (
        (["forecast", "predict", str(runs / "forecast"), "mine.csv", "--out", "mine.csv"], "is an input too"),
        (["forecast", "predict", str(runs / "forecast"), "--out", "next.txt"], "must end in .csv or .json"),
        (["forecast", "predict", str(runs / "forecast"), "--out", "no/next.csv"], "does not exist"),
        (["forecast", "inspect", "mine.csv", "--plot", "mine.csv"], "must end in .png"),
        (["vit", "predict", str(runs / "vit"), "mine.csv", "--out", "mine.csv"], "is an input too"),
    ):
        assert main(words) == 2
        assert expected in capsys.readouterr().err
    assert Path("mine.csv").read_text() == "precious"
    assert sorted((runs / "forecast").rglob("*")) == before


def test_resuming_names_a_run_of_another_kind_and_a_folder_without_one(runs, tmp_path, capsys):
    assert main(["vit", "train", "--resume", str(runs / "cnn")]) == 2
    assert "is a run of `cnn`, not of `vit`" in capsys.readouterr().err
    assert main(["vit", "train", "--resume", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_numbers_that_json_does_not_have_become_null():
    from mha_apps.training.files import json_text

    assert json_text({"a": float("nan"), "b": [float("inf"), 1.5], 3: Path("x"), "c": -0.0}) == (
        '{"a": null, "b": [null, 1.5], "3": "x", "c": 0.0}'
    )


def test_a_fault_of_ours_is_one_line_too(capsys, monkeypatch):
    import mha_apps.vision

    def fail(*arguments, **settings):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(mha_apps.vision, "train", fail, raising=False)
    assert main(["vit", "train"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "ZeroDivisionError: division by zero" in error
