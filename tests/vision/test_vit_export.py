"""A trained ViT handed on: the folder that it is written into, and a card whose snippets run."""

import importlib.util
import re

import numpy as np
import pytest

from mha_apps.cli import main
from mha_apps.errors import InputError
from mha_apps.training import Run
from mha_apps.vision import VitRecipe, export, train

TINY = {"data": "digits", "dim": 8, "depth": 1, "heads": 2, "device": "cpu", "precision": "fp32", "steps": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(VitRecipe(batch_size=8, **TINY), out=tmp_path_factory.mktemp("runs") / "run")


def run_snippets(folder, monkeypatch):
    """Execute the Python of a model card where it lies, as a reader would."""
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    return len(blocks)


@pytest.mark.parametrize("channels", [1, 2])
def test_every_snippet_of_the_card_runs_as_it_is_written(tmp_path, monkeypatch, capsys, channels):
    images = np.random.default_rng(0).integers(0, 256, (40, channels, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(40) % 2)
    run = train(VitRecipe(**TINY | {"data": str(tmp_path / "a.npz"), "batch_size": 8}), out=tmp_path / "run")
    onnx = channels == 1 and all(map(importlib.util.find_spec, ("onnx", "onnxruntime", "onnxscript")))
    export(run, tmp_path / "out", onnx=onnx)
    assert run_snippets(tmp_path / "out", monkeypatch) == 1 + onnx
    assert capsys.readouterr().out.strip().endswith(("0", "1"))


def test_a_card_names_files_and_no_folders_of_the_machine(run, tmp_path, monkeypatch):
    recipe = run.config["recipe"] | {"pretrained": str(tmp_path / "private" / "vit")}
    monkeypatch.setattr(Run, "config", run.config | {"recipe": recipe})
    export(run, tmp_path / "out", onnx=False)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "- pretrained: vit\n" in card
    assert "- dim: 8\n" in card
    assert str(tmp_path) not in card


def test_an_export_replaces_an_export_as_a_whole_and_nothing_else(run, tmp_path):
    out = tmp_path / "out"
    export(run, out, onnx=False)
    (out / "model.onnx").write_text("of another run")
    (out / "notes.txt").write_text("mine")
    with pytest.warns(UserWarning, match=r"model\.onnx: was of another export, and is removed"):
        result = export(run, out, onnx=False)
    assert sorted(path.name for path in out.iterdir()) == [*result["files"], "notes.txt"]

    (out / "README.md").write_text("# My project\n")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(InputError, match=r"README\.md: no export wrote it; .* --force"):
        export(run, out, onnx=False)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert main(["vit", "export", str(run.path), "--out", str(out), "--no-onnx", "--force"]) == 0
    assert "## Limits" in (out / "README.md").read_text()
    assert (out / "notes.txt").read_text() == "mine"
