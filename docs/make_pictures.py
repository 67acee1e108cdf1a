"""Makes the README's picture from a finished demo: ``mha-apps demo && python docs/make_pictures.py runs/demo``."""

import io
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from mha_apps.cnn import GatedCNN, plot_gates
from mha_apps.demo import UNITS
from mha_apps.forecast import examine
from mha_apps.images import load
from mha_apps.training import Run
from mha_apps.vision import explain, plot_explanation

WIDTH, SHOWN, SERIES = 1200, 2, "temperature"
OUT = Path(__file__).with_name("demo.png")


def drawn(figure) -> Image.Image:
    """A matplotlib figure as an image of the picture's width."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=160)
    image = Image.open(buffer).convert("RGB")
    return image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)


def main(demo: Path) -> None:
    digits = load("digits", "test")
    few = [int((digits.labels == number).nonzero()[0]) for number in range(2, 2 + SHOWN)]
    images, labels = digits.images[few], digits.labels[few]

    vit = plot_explanation(explain(Run.open(demo / "vit"), images), digits.classes, labels, heads=True)
    forecast = examine(demo / "forecast", plots=False).figures[SERIES]
    forecast.axes[0].set_ylabel(UNITS[SERIES])
    gates = plot_gates(Run.open(demo / "cnn").model(GatedCNN), images, labels=[digits.classes[i] for i in labels])

    parts = [
        ("vit: what the transformer looks at, through all layers and by each head of the last", drawn(vit)),
        ("forecast: two days of a weather station with 80% and 95% intervals, and what came", drawn(forecast)),
        ("cnn: the maps of CBAM's gates in a ResNet, with Grad-CAM", drawn(gates)),
    ]
    font = ImageFont.load_default(22)
    picture = Image.new("RGB", (WIDTH, sum(part.height + 44 for _, part in parts)), "white")
    draw, top = ImageDraw.Draw(picture), 0
    for title, part in parts:
        draw.text((12, top + 12), title, fill="black", font=font)
        picture.paste(part, (0, top + 44))
        top += part.height + 44
    picture.save(OUT, optimize=True)
    print(f"{OUT}: {picture.width} x {picture.height}, {OUT.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))
