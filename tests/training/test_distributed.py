"""Several processes train as one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mha_apps.training import Run

SCRIPT = Path(__file__).with_name("distributed_script.py")


def launch(processes: int, out: Path) -> Run:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    answer = subprocess.run(
        [*command, str(SCRIPT), str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return Run.open(out)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_and_evaluate_each_example_once(tmp_path):
    one, two = launch(1, tmp_path / "one"), launch(2, tmp_path / "two")
    assert one.summary()["processes"] == 1
    assert two.summary()["processes"] == 2
    first = [record for record in one.metrics() if record["phase"] == "validation"]
    second = [record for record in two.metrics() if record["phase"] == "validation"]
    assert len(first) == len(second) == 50
    for a, b in zip(first, second, strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], abs=1e-5)
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-5)
        assert b["count"] == 1.0  # 37 examples, which two processes cannot share evenly
