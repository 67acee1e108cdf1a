"""Use 3: plug CBAM into a trained CNN without changing what it computes, train on, and see what the gates do.

Look at the maps: which places CBAM turns down (Woo et al. 2018). ``--weights RUN`` takes a run trained without gates.
"""

import tempfile
from pathlib import Path

import torch
from _common import PICTURES, run, save, table

from mha_apps.cnn import CnnRecipe, GatedCNN, evaluate, plot_gates, plug, train
from mha_apps.images import load


def main(
    out: Path = PICTURES / "plug_cbam.png", data: str = "digits", weights: Path | None = None, epochs: int = 4
) -> dict[str, float]:
    options = {"data": data, "model": "resnet8", "epochs": epochs}
    images = load(data, "test")
    with tempfile.TemporaryDirectory() as folder:
        plain = weights or train(CnnRecipe(gate="none", **options), out=Path(folder) / "plain").path
        network, x = GatedCNN.from_pretrained(Path(plain) / "model").eval(), images.images[:8] / 255
        same = torch.equal(network(x), plug(network, "cbam", example=x)(x))  # the identity start: equal to the bit
        gated = train(CnnRecipe(gate="cbam", weights=str(plain), **options), out=Path(folder) / "gated")
        before, after = (evaluate(which)["top1"] for which in (plain, gated.path))
        labels = [images.classes[number] for number in images.labels[:2]]
        picture = plot_gates(gated.model(GatedCNN), images.images[:2], labels=labels)
    picture.set_size_inches(11, 3.2)
    save(picture, out)
    table(["network", "accuracy"], [("without gates", before), ("CBAM, trained on", after)])
    print(f"CBAM leaves the outputs {'equal to the bit' if same else 'changed'}; {before:.1%} became {after:.1%}.")
    return {"same": float(same), "before": before, "after": after}


if __name__ == "__main__":
    run(main, __doc__)
