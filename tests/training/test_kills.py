"""Killed at random moments, twenty times in a row, each trainer ends with the weights of the run that never was."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

SERVER = Path(__file__).with_name("trainer_server.py")
KILLS = 20
TRAINERS = {
    # Small models, so that a step takes milliseconds; with dropout, averaging and augmentation to be taken up again.
    "vit": "--data digits --epochs 15 --batch-size 64 --depth 2 --dim 16 --heads 2 --ema 0.9 --dropout 0.1 --mixup 0.4",
    "cnn": "--data digits --epochs 15 --batch-size 64 --model resnet8 --gate cbam --erasing 0.2",
    "forecast": "--no-trees --epochs 8 --validate-steps 20 --horizon 24 --look-back 72 --dim 8 --heads 2 --layers 1",
}


class Server:
    """Starts trainers; see ``trainer_server.py``."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, arguments: list[str]) -> "Trainer":
        self.process.stdin.write(json.dumps({"arguments": arguments, "log": str(self.log)}) + "\n")
        self.process.stdin.flush()
        return Trainer(self, int(self.process.stdout.readline()))


class Trainer:
    """A training under way."""

    def __init__(self, server: Server, number: int) -> None:
        self.server, self.number = server, number
        self.code: int | None = None
        self.waiter = threading.Thread(target=self._wait)
        self.waiter.start()

    def _wait(self) -> None:
        self.code = int(self.server.process.stdout.readline())

    def until(self, condition: Callable[[], bool], timeout: float = 300.0) -> None:
        """Wait until ``condition`` holds or the training has ended."""
        end = time.monotonic() + timeout
        while self.code is None and not condition():
            assert time.monotonic() < end, self.server.log.read_text()[-3000:]
            time.sleep(0.0002)

    def end(self, kill: bool = False) -> int:
        if kill and self.code is None:
            os.kill(self.number, signal.SIGKILL)
        self.waiter.join()
        assert self.code in (0, -signal.SIGKILL), self.server.log.read_text()[-3000:]
        return self.code


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server") / "log")
    yield server
    server.process.stdin.close()
    server.process.wait()


def files(run: Path) -> list[str]:
    """Paths in the run; unlike a glob this bears that some vanish meanwhile."""
    return [os.path.join(folder, name) for folder, _, names in os.walk(run) for name in names]


def checkpoints(run: Path) -> set[str]:
    return {path for path in files(run) if path.endswith(".pt")}


def being_saved(run: Path) -> bool:
    """Whether there is a file that has not got its name or place yet."""
    return any(path.endswith(".tmp") or "/.new/" in path for path in files(run))


def weights(run: Path) -> dict[str, bytes]:
    found = {}
    for file in sorted(run.glob("**/*.safetensors")):
        for name, value in load_file(file).items():
            found[f"{file.relative_to(run)} {name}"] = value.numpy().tobytes()
    return found


def validations(run: Path) -> list[dict[str, float]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [record for record in records if record["phase"] == "validation"]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in kept]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAINERS)
def test_a_run_killed_twenty_times_ends_with_the_same_bits(tmp_path, server, chaotic_days, kind):
    source = [str(chaotic_days)] if kind == "forecast" else []
    # A checkpoint at every step.
    settings = [*source, *TRAINERS[kind].split(), "--checkpoint-minutes", "1e-9", "--precision", "fp32"]
    train = [kind, "train", *settings, "--device", "cpu", "--out"]
    whole = tmp_path / "whole"
    trainer = server.start([*train, str(whole)])
    trainer.until(lambda: bool(checkpoints(whole)))
    begun = time.monotonic()
    assert trainer.end() == 0
    lasts = time.monotonic() - begun

    chance = random.Random(kind)
    kills = saving = starting = 0
    ended: list[Path] = []
    while kills < KILLS or not ended:
        run = tmp_path / f"killed-{len(ended)}"
        known = checkpoints(run)
        trainer = server.start([kind, "train", "--resume", str(run)] if known else [*train, str(run), "--force"])
        if kills < KILLS:
            wait_for_a_moment(trainer, run, known, chance, longest=2 * lasts / KILLS)
        if trainer.end(kill=kills < KILLS) == 0:
            ended.append(run)
            continue
        kills += 1
        saving += being_saved(run)
        starting += checkpoints(run) <= known
    print(
        f"{kind}: {lasts:.0f} s unkilled; {kills} kills, {saving} of them while saving, {starting} before a new "
        f"checkpoint; {len(ended)} runs ended"
    )
    assert saving > 0
    for run in ended:
        assert weights(run) == weights(whole)
        assert validations(run) == validations(whole)
        assert not being_saved(run)


def wait_for_a_moment(trainer: Trainer, run: Path, known: set[str], chance: random.Random, longest: float) -> None:
    """Wait for a moment to kill at: a fifth while the run is taken up, the others after a new checkpoint, on average
    a twentieth of the run after it, and half of these when a file is next being written."""
    if chance.random() < 0.2:
        pause(trainer, chance.uniform(0, 1))
        return
    trainer.until(lambda: bool(checkpoints(run) - known))
    pause(trainer, chance.uniform(0, longest))
    if chance.random() < 0.5:
        trainer.until(lambda: being_saved(run))


def pause(trainer: Trainer, seconds: float) -> None:
    end = time.monotonic() + seconds
    trainer.until(lambda: time.monotonic() >= end)
