"""`plug` for the command line: a network by name, what went where, and whether its output is still the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mha_apps.cnn.gates import Start
from mha_apps.cnn.models import GatedCNN, backbone
from mha_apps.cnn.places import Where
from mha_apps.cnn.surgery import plug
from mha_apps.cnn.verify import outputs
from mha_apps.errors import InputError

__all__ = ["plug_named"]


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
        InputError: see `backbone` and `plug`; a function as `where` cannot be saved.
    """
    if isinstance(where, str) and "," in where:
        where = [part.strip() for part in where.split(",")]
    network = backbone(model, classes=1000, pretrained=pretrained)
    count = sum(parameter.numel() for parameter in network.parameters())
    generator = torch.Generator().manual_seed(0)
    example = torch.randn(2, 3, image_size, image_size, generator=generator)
    try:
        before = outputs(network, example)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{model} does not take images of {image_size}x{image_size} ({reason})") from error
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
    if out is not None:
        if Path(out).is_dir() and any(Path(out).iterdir()):
            raise InputError(f"{out}: is not empty; name another folder")
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
        saved.save_pretrained(out)
        result["folder"] = str(out)
    return result
