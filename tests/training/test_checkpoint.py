"""Checkpoints: whole or absent, checked when read, and never code."""

import hashlib
import io
import os
import pickle

import pytest
import torch

from mha_apps.errors import InputError
from mha_apps.training import checkpoint, files


def state(value: float) -> dict:
    return {"model": {"weight": torch.full((100,), value)}, "progress": {"step": int(value), "best": float("nan")}}


def test_the_newest_checkpoint_comes_back_and_the_one_before_is_kept(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path / "last", step, state(step))
    found, damaged = checkpoint.load(tmp_path / "last")
    assert torch.equal(found["model"]["weight"], torch.full((100,), 3.0))
    assert damaged == []
    assert [path.name[:9] for path in sorted((tmp_path / "last").iterdir())] == ["000000002", "000000003"]


@pytest.mark.parametrize("harm", ["truncate", "flip a bit", "empty"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, harm):
    checkpoint.save(tmp_path, 1, state(1))
    newest = checkpoint.save(tmp_path, 2, state(2))
    content = bytearray(newest.read_bytes())
    if harm == "truncate":
        content = content[: len(content) // 2]
    elif harm == "empty":
        content = bytearray()
    else:
        content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    found, damaged = checkpoint.load(tmp_path)
    assert found["progress"]["step"] == 1
    assert str(newest) in damaged[0]


def test_a_bit_flipped_anywhere_is_seen(tmp_path):
    checkpoint.save(tmp_path, 1, state(1))
    newest = checkpoint.save(tmp_path, 2, state(2))
    whole = newest.read_bytes()
    places = [*range(0, len(whole), len(whole) // 100), len(whole) - 1]
    for place in places:
        newest.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        assert checkpoint.load(tmp_path)[0]["progress"]["step"] == 1
    newest.write_bytes(whole)
    assert checkpoint.load(tmp_path)[0]["progress"]["step"] == 2


def test_a_checkpoint_that_cannot_be_read_is_passed_over(tmp_path):
    checkpoint.save(tmp_path, 1, state(1))
    (tmp_path / f"{2:09d}-{'0' * 16}.pt").mkdir()  # reading it is an error of the operating system
    found, damaged = checkpoint.load(tmp_path)
    assert found["progress"]["step"] == 1
    assert "cannot be read" in damaged[0]


def test_when_every_checkpoint_is_damaged_one_line_says_so(tmp_path):
    checkpoint.save(tmp_path / "last", 1, state(1)).write_bytes(b"")
    with pytest.raises(InputError, match="every checkpoint is damaged"):
        checkpoint.load(tmp_path / "last")


def test_a_full_disk_leaves_the_old_file_and_no_leftovers(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left on device"):
        files.replace(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


class Malicious:
    def __reduce__(self):
        return (os.system, ("touch executed",))


def test_a_pickle_that_runs_code_is_refused_and_nothing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in (pickle.dumps(Malicious()), _torch_saved(Malicious())):
        folder = tmp_path / hashlib.sha256(content).hexdigest()[:8] / "last"
        folder.mkdir(parents=True)
        (folder / f"{1:09d}-{hashlib.sha256(content).hexdigest()[:16]}.pt").write_bytes(content)
        with pytest.raises(InputError, match="not a checkpoint"):
            checkpoint.load(folder)
    assert not (tmp_path / "executed").exists()


def _torch_saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
