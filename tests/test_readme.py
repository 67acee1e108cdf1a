"""What the README and the guides show runs as it stands; only long budgets and data that one must bring are small."""

import importlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mha_apps.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "examples/README.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
README, CHINESE = (path.read_text(encoding="utf-8") for path in PAGES[:2])


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


# A block that two pages show runs once.
PYTHON = {code: path.name for path in reversed(PAGES) for code in blocks("python", path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(("code", "page"), PYTHON.items(), ids=lambda text: text.splitlines()[-1][:40])
def test_python_blocks_run(code, page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {})
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
    for name in ("sensors.csv", "this-week.csv"):
        (tmp_path / name).write_bytes((ROOT / "data" / "weather_jfk_2013.csv").read_bytes())
    for command in commands:
        words = shlex.split(command)[1:]
        if "--data" in words:
            words[words.index("--data") + 1] = "images"
        if "train" in words:
            words += ["--steps", "2", *(["--no-trees", "--look-back", "48"] if "forecast" in words else [])]
        assert main(words) == 0, command
    assert (tmp_path / "next-48-hours.csv").read_text().startswith("unique_id,ds,mean,median,lo-80,hi-80")


def test_links_and_pictures_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def skeleton(text: str) -> list[str]:
    """Levels of headings, rows of tables, pictures and code, without the words around them."""
    code = [line.partition("#")[0].rstrip() for block in blocks("(?:bash|python)", text) for line in block.splitlines()]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ ", prose, flags=re.MULTILINE)
    rows = [str(row.count("|")) for row in re.findall(r"^\|.*\|$", prose, flags=re.MULTILINE)]
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", prose)
    return [*headings, *rows, *pictures, *code]


def test_the_chinese_readme_has_the_parts_of_the_english_one():
    assert skeleton(CHINESE) == skeleton(README)


def test_the_reference_names_everything_that_is_public():
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        package = importlib.import_module(f"mha_apps.{page.stem}")
        documented = re.findall(rf"^::: mha_apps\.{page.stem}\.(\w+)$", page.read_text(), flags=re.MULTILINE)
        assert sorted(documented) == sorted(package.__all__), page.name
