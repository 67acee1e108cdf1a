"""A disk that fills up, or a folder that cannot be written, ends a run in one line and keeps what was saved."""

import os
import subprocess
import sys

import pytest

from mha_apps.training import checkpoint

# A file may not grow beyond LIMIT bytes: writing fails in the middle, as on a full disk.
LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from mha_apps.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
sys.exit(main(sys.argv[1:]))
"""


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize(("limit", "what"), [(300_000, "model"), (1_000_000, "last")])
def test_a_full_disk_ends_in_one_line_and_the_run_goes_on_when_there_is_room(tmp_path, limit, what):
    out = tmp_path / "run"
    train = ["vit", "train", "--steps", "4", "--checkpoint-minutes", "10", "--out", str(out)]
    full = run(LIMITED.replace("LIMIT,", f"{limit},").replace("LIMIT)", f"{limit})"), *train)
    assert full.returncode == 2, full.stderr[-2000:]
    message = full.stderr.splitlines()[-1]
    assert message.startswith("mha-apps: ")
    assert str(out / what) in message
    assert "Traceback" not in full.stderr
    room = run(
        "import sys; from mha_apps.cli import main; sys.exit(main(sys.argv[1:]))", "vit", "train", "--resume", str(out)
    )
    assert room.returncode == 0, room.stderr[-2000:]
    state, damaged = checkpoint.load(out / "last")
    assert state["progress"]["step"] == 4
    assert damaged == []
    assert not list(out.rglob("*.tmp"))
    assert not (out / "model" / ".new").exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    tmp_path.chmod(0o500)
    answer = run(
        "import sys; from mha_apps.cli import main; sys.exit(main(sys.argv[1:]))",
        "vit",
        "train",
        "--out",
        str(tmp_path / "run"),
    )
    tmp_path.chmod(0o700)
    assert answer.returncode == 2
    assert "Permission denied" in answer.stderr.splitlines()[-1]
