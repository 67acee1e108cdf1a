"""Run by test_kills.py: imports everything once, then forks a trainer for each line of arguments on standard input.

A fork starts in milliseconds where a new Python needs seconds for its imports; it is killed like any other process.
"""

import json
import os
import sys
import traceback

import matplotlib.backends.backend_agg  # noqa: F401
import scipy.special  # noqa: F401
import sklearn.datasets  # noqa: F401

import mha_apps.cnn.train
import mha_apps.forecast.predict
import mha_apps.forecast.report
import mha_apps.forecast.trainer
import mha_apps.vision.explain
import mha_apps.vision.train  # noqa: F401
from mha_apps.cli import main


def child(arguments: list[str], log: str) -> None:
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code = 1
    try:
        code = main([*arguments, "--debug"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        order = json.loads(line)
        if (process := os.fork()) == 0:
            child(order["arguments"], order["log"])
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
