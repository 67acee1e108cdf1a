"""Handing a trained ViT on: ONNX with the normalisation inside, safetensors, and a model card that says what it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mha_apps.errors import InputError
from mha_apps.training import files
from mha_apps.training.export import exported, require_onnx, settings, write_onnx
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


def export(
    run: Run | str | Path, out: str | Path | None = None, *, onnx: bool = True, force: bool = False
) -> dict[str, Any]:
    """Write a run's model as files for others.

    Args:
        run: the run folder.
        out: the folder to write into; ``export`` in the run folder when None. An export that it holds is replaced.
        onnx: write ``model.onnx`` too. It takes ``pixels`` (batch, channels, height, width) float32 of 0..255, any
            batch, and gives ``probabilities`` (batch, classes). It is run beside torch before it counts as written.
        force: replace files of the same names in ``out`` that no export wrote.

    Returns:
        ``folder``, ``files``, and ``onnx_difference``: the largest difference of a probability from torch's.

    Raises:
        InputError: no trained model in the run; the packages of the extra ``export`` are missing; ONNX disagrees;
            ``out`` holds files of the same names that no export wrote.
    """
    run = run if isinstance(run, Run) else Run.open(run, "vit")
    model = load_model(run)
    folder = Path(out) if out is not None else run.path / "export"
    result: dict[str, Any] = {"folder": str(folder)}
    if onnx:
        require_onnx()
    with exported(folder, force=force) as new:
        with files.disk_errors(folder):
            for name in ("model.safetensors", "config.json"):
                shutil.copyfile(run.model_dir / name, new / name)
        if onnx:
            result["onnx_difference"] = _write_onnx(model, new / "model.onnx")
        files.replace_text(new / "README.md", model_card(run, model, onnx=onnx))
        result["files"] = sorted(path.name for path in new.iterdir())
    return result


def _write_onnx(model: ViT, path: Path) -> float:
    import numpy as np
    import onnxruntime

    wrapped = _FromPixels(model).eval()
    example = torch.randint(0, 256, (2, model.channels, *model.image_size)).float()
    write_onnx(wrapped, {"pixels": example}, ["probabilities"], path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    difference = 0.0
    for batch in (1, 5):
        pixels = torch.randint(0, 256, (batch, model.channels, *model.image_size)).float()
        (theirs,) = session.run(None, {"pixels": pixels.numpy()})
        with torch.no_grad():
            difference = max(difference, float(np.abs(theirs - wrapped(pixels).numpy()).max()))
    if difference > TOLERANCE:
        raise InputError(
            f"{path.name}: onnxruntime differs from torch by {difference:.2g}; report this with the run's config, and "
            "do without with --no-onnx"
        )
    return difference


def model_card(run: Run, model: ViT, *, onnx: bool) -> str:
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
    return f"""---
library_name: mha_apps
pipeline_tag: image-classification
tags: [vision-transformer, image-classification]
---
# A vision transformer for {len(model.classes)} classes

It tells {kind} images of {height}x{width} pixels apart: {shown}.

## Use
{_use(model)}
Images of other sizes are scaled until they cover {height}x{width} and cropped at the centre.
{_onnx_use(model) if onnx else ""}
## Data
Trained on `{Path(recipe.data).name}`. {summary.get("train", "")}; {summary.get("validation", "")}.
The weights are those of the best validation; the numbers below are of the validation images, which chose the weights:
`mha-apps vit evaluate` gives those of test images.

## Numbers
| | |
|---|---|
{numbers}

## Recipe
{settings(run, "data", "device")}

## Limits
- It knows no other class than those above: an image of something else gets one of them.
- It was not tested on images that differ from the training data in camera, light, scale or subject.
- A probability is only as honest as the calibration error that `mha-apps vit evaluate` prints.
"""


def _use(model: ViT) -> str:
    height, width = model.image_size
    if model.channels in (1, 3):
        return f"""```python
from PIL import Image

from mha_apps.vision import ViT, predict

model = ViT.from_pretrained(".")  # the folder of this file
Image.new("RGB", ({width}, {height})).save("example.png")  # any images: files, folders, globs
print(predict(model, "example.png", top_k={min(3, len(model.classes))}))
```"""
    return f"""```python
import torch

from mha_apps.images.classify import predict_probabilities
from mha_apps.vision import ViT

model = ViT.from_pretrained(".")  # the folder of this file
images = torch.zeros(1, {model.channels}, {height}, {width}, dtype=torch.uint8)  # any batch
probabilities = predict_probabilities(model, images, mean=model.mean, std=model.std)
print(model.classes[int(probabilities[0].argmax())])
```"""


def _onnx_use(model: ViT) -> str:
    height, width = model.image_size
    return f"""
`model.onnx` takes `pixels` (batch, {model.channels}, {height}, {width}) of 0..255 as float32, for any batch, and gives
`probabilities` (batch, {len(model.classes)}), in the order of `classes` in config.json.
```python
import json

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
pixels = np.full((1, {model.channels}, {height}, {width}), 127, dtype=np.float32)
(probabilities,) = session.run(None, {{"pixels": pixels}})
print(json.load(open("config.json"))["classes"][probabilities[0].argmax()])
```
"""
