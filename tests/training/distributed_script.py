"""Run by test_distributed.py under a launcher of processes: the three trainers as from the command line.

Two things are changed from outside: batch norms stay in evaluation mode, since their statistics over a part of a batch
are not those of the whole; and each validation example that a process evaluates is noted.
"""

import importlib
import json
import os
import sys
from pathlib import Path

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mha_apps.cli import main
from mha_apps.training import fit

COMMON = "--steps 50 --validate-steps 1 --device cpu --precision fp32 --debug"
TRAINERS = {
    "vit": ("mha_apps.vision.train", "--data digits --batch-size 64 --dim 16 --depth 2 --heads 2 --ema 0.9"),
    "cnn": ("mha_apps.cnn.train", "--data digits --batch-size 64 --model resnet8 --learning-rate 0.02"),
    "forecast": (
        "mha_apps.forecast.trainer",
        "CSV --no-trees --dropout 0 --horizon 24 --look-back 72 --dim 8 --heads 2 --layers 1 --patience 1000",
    ),
}


def noting(seen: list[int], path: Path):
    """The loop's ``fit``, which notes the validation examples of the run at ``path``."""

    def noted(task, recipe, run):
        evaluate = task.evaluate

        def evaluated(model, indices):
            if run.path == path:
                seen.extend(indices.tolist())
            return evaluate(model, indices)

        task.evaluate = evaluated
        return fit(task, recipe, run)

    return noted


if __name__ == "__main__":
    out, csv = Path(sys.argv[1]), sys.argv[2]
    _BatchNorm.train = lambda self, mode=True: nn.Module.train(self, False)
    for kind, (module, settings) in TRAINERS.items():
        seen: list[int] = []
        importlib.import_module(module).fit = noting(seen, out / kind)
        words = settings.replace("CSV", csv).split() + COMMON.split()
        code = main([kind, "train", *words, "--out", str(out / kind)])
        assert code == 0, f"{kind}: exit code {code}"
        (out / f"{kind}-{os.environ['RANK']}.json").write_text(json.dumps(seen))
