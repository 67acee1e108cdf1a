"""What the README shows runs as it stands; only long budgets and data that one must bring are made small."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mha_apps.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.splitlines()[-1][:40])
def test_python_blocks_run(code, capsys):
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


def write_class_folders(folder: Path) -> None:
    pixels = np.random.default_rng(0)
    for name in ("bird", "cat", "dog"):
        for number in range(12):
            path = folder / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(path)


def test_commands_run(tmp_path, monkeypatch):
    commands = [line.partition("#")[0] for block in blocks("bash") for line in block.splitlines()]
    commands = [line for line in commands if line.startswith("mha-apps") and "demo" not in line]
    assert len(commands) >= 6
    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        write_class_folders(tmp_path / "images" / split)
    write_class_folders(tmp_path / "photos")
    (tmp_path / "sensors.csv").write_bytes((ROOT / "data" / "weather_jfk_2013.csv").read_bytes())
    for command in commands:
        words = shlex.split(command)[1:]
        if "--data" in words:
            words[words.index("--data") + 1] = "images"
        if "--minutes" in words:
            at = words.index("--minutes")
            words[at : at + 2] = ["--steps", "2"]
        elif "train" in words:
            words += ["--steps", "2"]
        assert main(words) == 0, command
    assert (tmp_path / "next-48-hours.csv").read_text().startswith("unique_id,ds,mean,median,lo-80,hi-80")


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
