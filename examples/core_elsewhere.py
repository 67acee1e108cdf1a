"""Use 4: the core in models that were written without it, a timm ViT and ``nn.TransformerEncoder``, and its maps.

Look at the differences, which are rounding, and at the maps, which neither model gave before.
"""

from pathlib import Path

import timm
import torch
from _common import PICTURES, run, save, table
from torch import Tensor, nn

from mha_apps.attention import plot_attention, record_attention, replace_attention


@torch.no_grad()
def main(out: Path = PICTURES / "core_elsewhere.png", seed: int = 0, weights: Path | None = None) -> dict[str, float]:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    models: dict[str, tuple[nn.Module, Tensor]] = {
        "timm vit_tiny_patch16_224": (timm.create_model("vit_tiny_patch16_224"), torch.randn(1, 3, 224, 224)),
        "nn.TransformerEncoder": (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(1, 12, 64)),
    }
    if weights is not None:
        models["timm vit_tiny_patch16_224"][0].load_state_dict(torch.load(weights, weights_only=True))
    rows = []
    for name, (model, x) in models.items():
        before = model.eval()(x)
        replaced = replace_attention(model).replaced  # in place: same parameters, same outputs, now the core's
        with record_attention(model) as maps:
            difference = float((model(x) - before).abs().max())
        rows.append((name, len(replaced), difference, str(tuple(maps[0].shape))))
    table(["model", "replaced", "largest difference", "a map: batch, heads, query, key"], rows)
    picture = plot_attention(maps, title="nn.TransformerEncoder (untrained): attention of each layer and head")
    picture.supxlabel("key, token")
    picture.supylabel("query, token")
    save(picture, out)
    worst = max(row[2] for row in rows)
    print(f"{sum(row[1] for row in rows)} attention modules were replaced; outputs differ by {worst:.0e} at most.")
    return {"replaced": sum(row[1] for row in rows), "difference": worst}


if __name__ == "__main__":
    run(main, __doc__)
