"""Killed at random moments, twenty times in a row, each trainer ends with the weights of the run that never was."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

KILLS = 20
TRAINERS = {
    "vit": ["vit", "train", "--data", "digits", "--epochs", "6", "--ema", "0.9"],
    "cnn": ["cnn", "train", "--data", "digits", "--epochs", "3", "--gate", "cbam"],
    "forecast": ["forecast", "train", "sample", "--epochs", "1", "--horizon", "24", "--look-back", "48"],
}


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "mha_apps", *arguments, "--device", "cpu", "--precision", "fp32"]
    # A checkpoint at every step, so that many of the kills fall into one being saved.
    command += ["--checkpoint-minutes", "1e-9"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAINERS)
def test_a_run_killed_twenty_times_ends_with_the_same_bits(tmp_path, kind):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    begun = time.monotonic()
    process = start([*TRAINERS[kind], "--out", str(whole)])
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output.decode()[-3000:]
    lasted = time.monotonic() - begun

    chance = random.Random(0)
    kills = 0
    arguments = [*TRAINERS[kind], "--out", str(killed)]
    for _ in range(40 * KILLS):
        process = start(arguments)
        if kills < KILLS:
            # Wait until there is something to lose, then for a random moment.
            while process.poll() is None and not list((killed / "last").glob("*.pt")):
                time.sleep(0.01)
            try:
                process.wait(timeout=chance.uniform(0, lasted))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
        output, _ = process.communicate(timeout=900)
        if process.returncode == 0 and kills >= KILLS:
            break
        assert process.returncode in (0, -signal.SIGKILL), output.decode()[-3000:]
        if process.returncode == 0:
            # It ended before its kill: start over, so that all kills fall into a run.
            arguments = [*TRAINERS[kind], "--out", str(killed), "--force"]
            continue
        arguments = [kind, "train", "--resume", str(killed)]
    assert kills == KILLS
    expected, found = weights(whole), weights(killed)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
