"""Several processes train as one does, and speak with one voice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from mha_apps.training import Run, checkpoint

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("distributed_script.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--num_processes", "2"]
SMALL = ["--device", "cpu", "--batch-size", "32"]


def start(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,  # a process group of its own, as a terminal gives to a command
    )


def ended(command: list[str]) -> tuple[int, str, str]:
    process = start(command)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def ours(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("mha-apps: ")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, chaotic_days):
    """What one process and what two make of the same recipes."""
    made = []
    for processes in (1, 2):
        folder = tmp_path_factory.mktemp(f"of-{processes}")
        code, _, err = ended([*TORCHRUN, str(processes), str(SCRIPT), str(folder), str(chaotic_days)])
        assert code == 0, err[-3000:]
        made.append(folder)
    return made


@pytest.mark.parametrize("kind", ["vit", "cnn", "forecast"])
def test_two_processes_have_the_losses_of_one(folders, kind):
    runs = [Run.open(folder / kind) for folder in folders]
    one, two = ([record for record in run.metrics() if record["phase"] == "validation"] for run in runs)
    assert len(one) == len(two) == 50
    assert len({record["train_loss"] for record in one}) == 50
    for a, b in zip(one, two, strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], abs=1e-5)
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-5)
    assert [run.summary()["processes"] for run in runs] == [1, 2]


@pytest.mark.parametrize("kind", ["vit", "cnn", "forecast"])
def test_two_processes_evaluate_each_example_once(folders, kind):
    shares = [json.loads((folders[1] / f"{kind}-{rank}.json").read_text()) for rank in (0, 1)]
    seen = Counter(shares[0] + shares[1])
    assert set(seen.values()) == {50}
    assert seen == Counter(json.loads((folders[0] / f"{kind}-0.json").read_text()))
    if kind != "forecast":
        assert len(seen) == 143  # which two processes cannot share evenly


@pytest.mark.parametrize("kind", ["vit", "cnn", "forecast"])
def test_two_processes_write_and_print_once(tmp_path, kind):
    launcher = [*ACCELERATE, "--multi_gpu", "--main_process_port", "0"] if kind == "cnn" else [*TORCHRUN, "2"]
    source = (
        ["sample", "--no-trees", "--horizon", "24", "--look-back", "48"] if kind == "forecast" else ["--data", "digits"]
    )
    command = [*launcher, "-m", "mha_apps", kind, "train", *source, *SMALL, "--steps", "20", "--json"]
    code, out, err = ended([*command, "--out", str(tmp_path / "run")])
    assert code == 0, err[-3000:]
    answer = json.loads(out)  # one object, and nothing else
    assert answer["processes"] == 2
    assert answer["steps"] == 20
    run = Run.open(tmp_path / "run")
    steps = [record["step"] for record in run.metrics()]
    assert len(steps) == len(set(steps))
    assert len(list(run.path.glob("events.*"))) == 1
    assert (run.path / "report.html").is_file()
    assert err.count("(best)") >= 1
    assert len([line for line in err.splitlines() if "step 20:" in line]) == 1


def test_accelerate_says_that_on_a_cpu_it_starts_one_process(tmp_path):
    command = [*ACCELERATE, "--cpu", "-m", "mha_apps", "vit", "train", *SMALL, "--steps", "2", "--json"]
    code, out, err = ended([*command, "--out", str(tmp_path / "run")])
    assert code == 0, err[-3000:]
    assert json.loads(out)["processes"] == 1
    assert "starts one process" in err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--data", "nowhere"], "no such file or folder"),
        (["--batch-size", "33"], "must be divisible by the 2 processes"),
        (["--out", str(Path(__file__).parent)], "holds no run"),
    ],
)
def test_what_cannot_be_used_is_said_once(tmp_path, settings, message):
    out = [] if "--out" in settings else ["--out", str(tmp_path / "run")]
    code, printed, err = ended([*TORCHRUN, "2", "-m", "mha_apps", "vit", "train", "--device", "cpu", *settings, *out])
    assert code != 0
    assert printed == ""
    assert len(ours(err)) == 1
    assert message in ours(err)[0]
    assert "exitcode  : 2" in err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_saves_once_and_two_processes_go_on_from_there(tmp_path):
    run = tmp_path / "run"
    command = [*TORCHRUN, "2", "-m", "mha_apps", "vit", "train"]
    process = start([*command, *SMALL, "--epochs", "1000", "--out", str(run)])
    end = time.monotonic() + 300
    while not (run / "model" / "model.safetensors").exists():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < end
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    [line] = ours(err)
    assert f"and saved; continue with --resume {run}" in line
    state, damaged = checkpoint.load(run / "last")
    assert damaged == []
    step = state["progress"]["step"]
    assert f"stopped at step {step} " in line
    code, _, err = ended([*command, "--resume", str(run), "--steps", str(step + 3)])
    assert code == 0, err[-3000:]
    assert Run.open(run).summary()["steps"] == step + 3
