"""What all tests share."""

import os
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores: a thread each. Set before torch is imported, and inherited by what tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The development data beside the repository; tests that need it are skipped where it is absent."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("../shared/data is absent")
    return path
