"""`plug` for the command line: a network by name, what went where, and whether its output is still the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from mha_apps.cnn.gates import Start
from mha_apps.cnn.models import GatedCNN, backbone
from mha_apps.cnn.places import Where
from mha_apps.cnn.surgery import plug
from mha_apps.cnn.verify import outputs
from mha_apps.errors import InputError
from mha_apps.training.files import disk_errors

__all__ = ["plug_named"]

#: Pixels; one feature map of 64 channels at half of it takes half a gigabyte for the two images that are compared.
LARGEST_SIDE = 2048


def plug_named(
    model: str,
    gate: str = "cbam",
    *,
    where: Where = "auto",
    start: Start = "identity",
    image_size: int = 224,
    pretrained: bool = False,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Plugs gates into a network of torchvision's, timm's or ours, and compares its output before and after.

    Args:
        model: see `backbone`.
        gate, where, start: see `plug`; several globs in one text have commas between them.
        image_size: side of the images, in pixels.
        pretrained: with the weights that the library has for it; downloads them.
        out: a folder for the gated network, which `GatedCNN.from_pretrained` reads.

    Returns:
        `gates`, a row each with path, channels, height, width, parameters and macs; `skipped`, what was passed over;
        `parameters` and `macs` of all gates; `backbone_parameters`; `largest_change` of the output, 0 for `identity`;
        and `folder` if it was saved.

    Raises:
        InputError: see `backbone` and `plug`; the network does not take images of that size; `out` is a file, holds
            something, or cannot be written.
    """
    if not 1 <= image_size <= LARGEST_SIDE:
        raise InputError(f"--image-size {image_size}: must be from 1 to {LARGEST_SIDE}")
    folder = Path(out).expanduser() if out is not None else None
    if folder is not None and folder.exists():
        with disk_errors(folder):
            if not folder.is_dir() or any(folder.iterdir()):
                raise InputError(f"--out {out}: is a file or not empty; name another folder")
    if isinstance(where, str) and "," in where:
        where = [part.strip() for part in where.split(",")]
    network = backbone(model, classes=1000, pretrained=pretrained)
    count = sum(parameter.numel() for parameter in network.parameters())
    generator = torch.Generator().manual_seed(0)
    example = torch.randn(2, 3, image_size, image_size, generator=generator)
    try:
        before = outputs(network, example)
    except Exception as error:  # the libraries' networks assert, and raise RuntimeError, ValueError and their own
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"model {model!r} does not take images of {image_size}x{image_size} ({reason}); set --image-size"
        ) from error
    plug(network, gate, where, start, example=example)
    table: Any = network.gates
    result = {
        "model": model,
        "gate": gate,
        "start": start,
        "gates": [vars(row) for row in table],
        "skipped": table.skipped,
        "parameters": table.parameters,
        "macs": table.macs,
        "backbone_parameters": count,
        "largest_change": float((outputs(network, example) - before).abs().max()),
    }
    if folder is not None:
        places = [row.path for row in table]
        saved = GatedCNN(
            model=model,
            classes=[str(number) for number in range(1000)],
            gate=gate,
            where=places,
            start=start,
            image_size=(image_size, image_size),
        )
        saved.backbone.load_state_dict(network.state_dict())
        try:
            with disk_errors(folder):
                saved.save_pretrained(folder)
        except SafetensorError as error:  # which it raises for the errors of the disk, too
            raise InputError(f"{folder}: cannot be written ({error}); name another folder with --out") from error
        result["folder"] = str(out)
    return result
