"""Handing a trained ViT on: ONNX with the normalisation inside, safetensors, and a model card that says what it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mha_apps.errors import InputError
from mha_apps.training import files
from mha_apps.training.run import Run
from mha_apps.vision.model import ViT, load_model
from mha_apps.vision.recipe import VitRecipe

__all__ = ["export"]

#: Largest difference of the logits between torch and onnxruntime that passes for rounding.
TOLERANCE = 1e-3


class _FromPixels(nn.Module):
    """The model with its normalisation: pixels of 0..255 as float32 in, probabilities out."""

    shift: Tensor
    scale: Tensor

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("shift", 255 * torch.tensor(model.mean).reshape(-1, 1, 1))
        self.register_buffer("scale", 255 * torch.tensor(model.std).reshape(-1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model((pixels - self.shift) / self.scale).softmax(dim=-1)


def export(run: Run | str | Path, out: str | Path | None = None, *, onnx: bool = True) -> dict[str, Any]:
    """Write a run's model as files for others.

    Args:
        run: the run folder.
        out: the folder to write into; ``export`` in the run folder when None.
        onnx: write ``model.onnx`` too. It takes ``pixels`` (batch, channels, height, width) float32 of 0..255, any
            batch, and gives ``probabilities`` (batch, classes). It is run beside torch before it counts as written.

    Returns:
        ``folder``, ``files``, and ``onnx_difference``: the largest difference of a probability from torch's.

    Raises:
        InputError: no trained model in the run; the packages of the extra ``export`` are missing; ONNX disagrees.
    """
    run = run if isinstance(run, Run) else Run.open(run, "vit")
    model = load_model(run)
    folder = Path(out) if out is not None else run.path / "export"
    result: dict[str, Any] = {"folder": str(folder)}
    if onnx:
        _require_onnx()
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("model.safetensors", "config.json"):
            shutil.copyfile(run.model_dir / name, folder / name)
    files.replace_text(folder / "README.md", model_card(run, model))
    if onnx:
        result["onnx_difference"] = _write_onnx(model, folder / "model.onnx")
    result["files"] = sorted(path.name for path in folder.iterdir())
    return result


def _require_onnx() -> None:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"{error.name} is missing; pip install 'mha_apps[export]', or leave ONNX out") from error


def _write_onnx(model: ViT, path: Path) -> float:
    import numpy as np
    import onnxruntime

    wrapped = _FromPixels(model).eval()
    example = torch.randint(0, 256, (2, model.channels, *model.image_size)).float()
    torch.onnx.export(
        wrapped,
        (example,),
        path,
        input_names=["pixels"],
        output_names=["probabilities"],
        dynamic_shapes={"pixels": {0: torch.export.Dim("batch")}},
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    difference = 0.0
    for batch in (1, 5):
        pixels = torch.randint(0, 256, (batch, model.channels, *model.image_size)).float()
        (theirs,) = session.run(None, {"pixels": pixels.numpy()})
        with torch.no_grad():
            difference = max(difference, float(np.abs(theirs - wrapped(pixels).numpy()).max()))
    if difference > TOLERANCE:
        path.unlink()
        raise InputError(
            f"{path}: onnxruntime differs from torch by {difference:.2g}; report this with the run's config"
        )
    return difference


def model_card(run: Run, model: ViT) -> str:
    """What a stranger needs to know before using the model: task, data, recipe, numbers, limits; Markdown."""
    recipe, summary = run.recipe(VitRecipe), run.summary()
    height, width = model.image_size
    kind = {1: "grey", 3: "RGB"}.get(model.channels, f"{model.channels}-channel")
    shown = ", ".join(model.classes[:20]) + (", ..." if len(model.classes) > 20 else "")
    numbers = "\n".join(
        f"| {name.replace('_', ' ')} | {value:.4g} |"
        if isinstance(value, float)
        else f"| {name.replace('_', ' ')} | {value} |"
        for name, value in summary.items()
    )
    settings = "\n".join(
        f"- {name}: {value}" for name, value in run.config["recipe"].items() if name not in ("data", "device")
    )
    return f"""---
library_name: mha_apps
pipeline_tag: image-classification
tags: [vision-transformer, image-classification]
---
# A vision transformer for {len(model.classes)} classes

It tells {kind} images of {height}x{width} pixels apart: {shown}.

## Use
```python
from mha_apps.vision import ViT, predict

model = ViT.from_pretrained("FOLDER OF THIS FILE")
print(predict(model, "FOLDER OF IMAGES", top_k=3))
```
Images of other sizes are scaled until they cover {height}x{width} and cropped at the centre. `model.onnx`, where there
is one, takes `pixels` (batch, {model.channels}, {height}, {width}) of 0..255 as float32 and gives `probabilities`.

## Data
Trained on `{recipe.data}`. {summary.get("train", "")}; {summary.get("validation", "")}.
The weights are those of the best validation; the numbers below are of the validation images, which chose the weights:
`mha-apps vit evaluate` gives those of test images.

## Numbers
| | |
|---|---|
{numbers}

## Recipe
{settings}

## Limits
- It knows no other class than those above: an image of something else gets one of them.
- It was not tested on images that differ from the training data in camera, light, scale or subject.
- A probability is only as honest as the calibration error that `mha-apps vit evaluate` prints.
"""
