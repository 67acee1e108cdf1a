"""The ViT beside its peers: how fast it trains, and how accurate it gets in the same minutes.

    python benchmarks/vit.py speed                          # training images per second at equal geometry
    python benchmarks/vit.py minutes --data cifar10         # accuracy against minutes: a table and a PNG
    python benchmarks/vit.py predict                        # images per second of predict, files included; its start

Peers are timm's VisionTransformer (attention fused and not) and vit-pytorch's SimpleViT. In ``speed`` they take turns,
so that a busy machine slows all of them alike; a line gives medians and the median of the ratios of neighbouring turns.
In ``minutes`` every model goes through the same loop, the same images and the same augmentation, one after the other:
ours with its recipe, the peers, of nearly as many MACs, with the usual one (AdamW, crop and flip, warm-up, cosine),
each as fast as ``speed`` finds it here. Peers that are not installed are left out and named (``pip install
mha_apps[bench]``).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub import PyTorchModelHubMixin
from safetensors.torch import load_model as load_weights
from torch import Tensor, nn

from mha_apps.images.classify import classification_task, load_for_training, predict_probabilities
from mha_apps.images.source import load
from mha_apps.training.clock import counting_from
from mha_apps.training.loop import fit
from mha_apps.training.recipe import load_recipe
from mha_apps.training.run import Run
from mha_apps.vision import ViT, VitRecipe
from mha_apps.vision.presets import find_preset
from mha_apps.vision.train import build

PRECISIONS = ("fp32", "autocast", "bf16")
GEOMETRY = {"image_size": 32, "patch_size": 4, "dim": 192, "depth": 9, "heads": 3}
SAME_WORK = {"patch_size": 4, "dim": 128, "depth": 7, "heads": 2}  # 96M MACs an image, a little less than ours
RECIPES = Path(__file__).parents[1] / "mha_apps" / "vision" / "recipes"


def installed(package: str) -> bool:
    if find_spec(package) is None:
        print(f"({package} is not installed: left out)")
        return False
    return True


def timms(fused: bool, image_size: int, patch_size: int, dim: int, depth: int, heads: int, classes: int) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=image_size, patch_size=patch_size, embed_dim=dim, depth=depth, num_heads=heads, num_classes=classes,
        class_token=False, global_pool="avg",
    )  # fmt: skip
    for block in model.blocks:
        block.attn.fused_attn = fused
    return model


def simple_vit(image_size: int, patch_size: int, dim: int, depth: int, heads: int, classes: int) -> nn.Module:
    from vit_pytorch import SimpleViT

    return SimpleViT(
        image_size=image_size, patch_size=patch_size, num_classes=classes, dim=dim, depth=depth, heads=heads,
        mlp_dim=4 * dim, dim_head=dim // heads,
    )  # fmt: skip


def contestants(**geometry: int) -> dict[str, Callable[[], nn.Module]]:
    """Ours first; each makes a new model."""
    found: dict[str, Callable[[], nn.Module]] = {"mha_apps": lambda: ViT(**geometry)}
    if installed("timm"):
        found["timm, fused"] = lambda: timms(True, **geometry)
        found["timm, plain"] = lambda: timms(False, **geometry)
    if installed("vit_pytorch"):
        found["vit-pytorch SimpleViT"] = lambda: simple_vit(**geometry)
    return found


def training_step(model: nn.Module, images: Tensor, labels: Tensor, precision: str) -> Callable[[], None]:
    """One step of AdamW. Pure bf16 keeps everything in bf16."""
    if precision == "bf16":
        model, images = model.bfloat16(), images.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "autocast"):
            logits = model(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if images.device.type == "cuda":
            torch.cuda.synchronize()

    return step


def speed(args: argparse.Namespace) -> None:
    """Training images per second of every model in every precision."""
    torch.manual_seed(0)
    images = torch.randn(args.batch_size, 3, 32, 32, device=args.device)
    labels = torch.randint(0, 10, (args.batch_size,), device=args.device)
    steps = {
        f"{name}, {precision}": training_step(make().to(args.device).train(), images, labels, precision)
        for name, make in contestants(**GEOMETRY, classes=10).items()
        for precision in args.precision
    }
    clock = time.process_time if args.cpu_time else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(args.rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begun = clock()
            steps[name]()
            if number:  # the first round does not count
                seconds[name].append(clock() - begun)
    best = min((name for name in names if name.startswith("mha_apps")), key=lambda n: statistics.median(seconds[n]))
    print(f"\n  32x32, patch 4, dim 192, depth 9, 3 heads, MLP x4, batch {args.batch_size}, {args.device}, a step:")
    for name, own in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(own, seconds[best], strict=True))
        rate = args.batch_size / statistics.median(own)
        print(f"    {name:<34}{rate:>8.0f} images/s   {ratio:>6.2f} x the time of {best}")


class Peer(nn.Module, PyTorchModelHubMixin):
    """A peer's model under what the loop asks for: it can be saved."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        assert inner is not None
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images)


def minutes(args: argparse.Namespace) -> None:
    """Accuracy against minutes."""
    ours = replace(
        load_recipe(VitRecipe, RECIPES / f"{args.recipe}.toml"), data=args.data, minutes=args.minutes, seed=args.seed
    )
    usual = VitRecipe(
        data=args.data, minutes=args.minutes, seed=args.seed, validation=ours.validation, batch_size=128,
        optimizer="adamw", learning_rate=1e-3, weight_decay=0.05, warmup=0.05, mixup=0.0, label_smoothing=0.1,
    )  # fmt: skip
    images, validation = load_for_training(ours)
    test = load(args.data, "test")
    mean, std = images.statistics()
    geometry = {**SAME_WORK, "image_size": images.image_size[0], "classes": len(images.classes)}
    entries: dict[str, tuple[VitRecipe, Callable[[], nn.Module]]] = {
        f"mha_apps {args.recipe}": (ours, lambda: build(ours, images))
    }
    for name, make in contestants(**geometry).items():
        if name in args.models:
            entries[f"{name}, usual recipe"] = (usual, lambda make=make: Peer(make()))
    out = Path(args.out).with_suffix("")
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, (recipe, make) in entries.items():
        with counting_from():
            torch.manual_seed(args.seed)
            model = make()
            task = classification_task(model, images, validation, recipe, mean=mean, std=std)
            run = Run.create(out / name.replace(" ", "-").replace(",", ""), recipe, "vit", force=True)
            fit(task, recipe, run)
        load_weights(model, str(run.model_dir / "model.safetensors"))
        correct = predict_probabilities(model.eval(), test.images, mean=mean, std=std).argmax(dim=1) == test.labels
        curves[name] = [
            (row["seconds"] / 60, 100 * row["top1"]) for row in run.metrics() if row["phase"] == "validation"
        ]
        count, top1 = sum(weight.numel() for weight in model.parameters()) / 1e6, 100 * correct.float().mean().item()
        print(f"  {name:<40}{count:>6.2f}M parameters  test top-1 {top1:.1f} %", flush=True)
        draw(curves, args)


def draw(curves: dict[str, list[tuple[float, float]]], args: argparse.Namespace) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    ax = figure.subplots()
    for name, points in curves.items():
        ax.plot([p[0] for p in points], [p[1] for p in points], marker="o", markersize=3, label=name)
    ax.set(xlabel="minutes", ylabel="validation top-1 (%)", title=f"{Path(args.data).name}: accuracy against minutes")
    ax.set_xlim(left=0)
    ax.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(curves), fontsize="small", frameon=False)
    figure.savefig(args.out, dpi=150)


def predict(args: argparse.Namespace) -> None:
    """Images per second of ``vit predict`` over PNG files of 32x32, and its start against the imports alone."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "run").mkdir()
        model = ViT(image_size=32, **find_preset("compact", (32, 32)))
        run = Run.create(root / "run" / "vit", VitRecipe(), "vit")
        run.begin()
        model.save_pretrained(run.model_dir)
        files = root / "images"
        files.mkdir()
        pixels = torch.randint(0, 256, (args.images, 32, 32, 3), dtype=torch.uint8).numpy()
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(files / f"{number}.png")

        def seconds(*command: str) -> float:
            begun = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
            return time.perf_counter() - begun

        one, verb = str(files / "0.png"), ("-m", "mha_apps", "vit", "predict", str(run.path))
        starts = [(seconds(*verb, one), seconds("-c", "import torch, torchvision")) for _ in range(args.rounds)]
        first = statistics.median(a for a, _ in starts)
        ratio = statistics.median(a / b for a, b in starts)
        whole = seconds(*verb, str(files), "--out", str(root / "answers.csv"))
    print(f"  start to the first prediction: {first:.1f} s, {ratio:.2f} x importing torch and torchvision alone")
    print(
        f"  {args.images:,} files: {args.images / (whole - first):,.0f} images/s after the start, {whole:.1f} s in all"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "minutes", "predict"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256, help="of speed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", nargs="*", default=list(PRECISIONS), choices=PRECISIONS, help="of speed")
    parser.add_argument("--cpu-time", action="store_true", help="speed in processor time, one thread")
    parser.add_argument("--data", default="cifar10", help="of minutes")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--recipe", default="cpu-10m", help="ours in minutes")
    parser.add_argument("--models", nargs="*", default=["timm, fused", "vit-pytorch SimpleViT"], help="in minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=10_000, help="of predict")
    parser.add_argument("--out", default="runs/vit-minutes.png", help="of minutes; the runs lie beside it")
    parser.add_argument("--threads", type=int, help="of minutes")
    args = parser.parse_args()
    if args.cpu_time or args.threads:
        torch.set_num_threads(args.threads or 1)
    parts: dict[str, Callable[[Any], None]] = {"speed": speed, "minutes": minutes, "predict": predict}
    parts[args.part](args)


if __name__ == "__main__":
    main()
