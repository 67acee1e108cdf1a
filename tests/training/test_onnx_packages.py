"""The packages of the extra ``export``: which of them is not there, or does not work, and why."""

import builtins
import importlib

import pytest

from mha_apps.errors import InputError
from mha_apps.training.export import require_onnx


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("onnxruntime", ImportError("DLL load failed"), r"onnxruntime is installed .* \(DLL load failed\); install it"),
        ("onnxscript", ModuleNotFoundError("no", name="onnxscript"), r"onnxscript is missing; pip install"),
        ("onnx", ModuleNotFoundError("no", name="ml_dtypes"), r"ml_dtypes is missing; pip install"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_with_the_reason(monkeypatch, name, error, message):
    def load(asked):
        if asked == name:
            raise error
        return builtins

    monkeypatch.setattr(importlib, "import_module", load)
    with pytest.raises(InputError, match=message):
        require_onnx()
