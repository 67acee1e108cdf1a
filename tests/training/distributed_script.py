"""Run by test_distributed.py under `accelerate launch`: a small training whose losses are then compared."""

import sys

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from mha_apps.training import Run, Task, TrainingRecipe, fit, seed_everything


class Small(nn.Module, PyTorchModelHubMixin):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)[:, 0]


def main(out: str) -> None:
    x = torch.randn(137, 4, generator=torch.Generator().manual_seed(0))
    y = x.prod(1)
    seen: list[int] = []

    def evaluate(model, indices):
        seen.extend(indices.tolist())
        return {"loss": (model(x[100:][indices]) - y[100:][indices]) ** 2, "count": torch.ones(len(indices))}

    recipe = TrainingRecipe(steps=50, batch_size=16, validate_steps=1, ema=0.9, device="cpu", precision="fp32")
    seed_everything(0)
    task = Task(
        model=Small(),
        examples=100,
        batch=lambda indices, epoch: (x[indices], y[indices]),
        loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        validation_examples=37,
        evaluate=evaluate,
    )
    fit(task, recipe, Run.create(out, recipe, "vit", force=True))


if __name__ == "__main__":
    main(sys.argv[1])
