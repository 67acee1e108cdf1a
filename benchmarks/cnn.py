"""Measurements of the gates, and of putting them into networks.

python benchmarks/cnn.py surgery              every promise of plug on 30 networks of torchvision and 64 of timm
python benchmarks/cnn.py surgery --gates se   with one gate only
python benchmarks/cnn.py overhead             training step and inference, ours and timm's gates side by side
python benchmarks/cnn.py finetune             CBAM put into a trained network, from either start: accuracy step by step
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from mha_apps.cnn.compare import trained
from mha_apps.cnn.models import GatedCNN, backbone
from mha_apps.cnn.recipe import CnnRecipe
from mha_apps.cnn.surgery import GATES, find_gates, plug
from mha_apps.cnn.train import build, load_model
from mha_apps.cnn.verify import CHECKS, check_insertion
from mha_apps.errors import InputError
from mha_apps.images.classify import load_for_training, predict_probabilities
from mha_apps.images.source import ImageSet
from mha_apps.training.run import Run

# Small members of each family; the side of the input is 64 unless the network needs more.
TORCHVISION = {
    "residual": [
        *("resnet18", "resnet34", "resnet50", "resnext50_32x4d", "wide_resnet50_2"),
        *("regnet_x_400mf", "regnet_y_400mf", "regnet_x_800mf", "regnet_y_800mf"),
    ],
    "inverted residual": [
        *("mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5", "mnasnet0_75", "mnasnet1_0"),
        *("efficientnet_b0", "efficientnet_b1", "efficientnet_v2_s"),
    ],
    "ConvNeXt-like": ["convnext_tiny", "convnext_small"],
    "dense": ["densenet121", "densenet169"],
    "VGG-like": ["vgg11_bn", "alexnet", "squeezenet1_0", "squeezenet1_1"],
    "multi-branch": ["googlenet", "inception_v3", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0"],
}
TIMM = {
    "residual": [
        *("resnet10t", "resnet14t", "resnet26d", "resnet50", "seresnet50", "ecaresnet26t", "resnetaa50", "skresnet18"),
        *("resnest14d", "res2net50_26w_4s", "regnetx_002", "regnety_002", "darknet53", "dla34", "hrnet_w18_small"),
        *("tresnet_m", "gernet_s", "xception41", "legacy_xception", "inception_resnet_v2"),
    ],
    "pre-activation": ["resnetv2_50", "resnetv2_50d", "nf_resnet50", "nfnet_l0", "xception41p"],
    "inverted residual": [
        *("mobilenetv2_050", "mobilenetv3_small_050", "efficientnet_lite0", "tf_efficientnetv2_b0", "mixnet_s"),
        *("mnasnet_small", "fbnetc_100", "spnasnet_100", "mobilenetv4_conv_small", "ghostnet_050", "rexnet_100"),
        *("hardcorenas_a", "hardcorenas_b", "tinynet_e", "lcnet_050"),
    ],
    "ConvNeXt-like": [
        *("convnext_atto", "convnext_pico", "convnextv2_atto", "inception_next_atto", "edgenext_xx_small"),
        *("mambaout_femto", "convmixer_768_32", "poolformer_s12", "starnet_s1"),
    ],
    "dense": ["densenet121", "ese_vovnet19b_dw", "dpn48b", "rdnet_tiny"],
    "VGG-like": ["vgg11", "repvgg_a0", "selecsls42"],
    "multi-branch": [
        *("inception_v3", "inception_v4", "cspresnet50", "cspdarknet53", "hgnet_tiny", "fastvit_t8"),
        *("mobileone_s0", "repghostnet_050"),
    ],
}
LARGER = {"inception_v3": 96, "inception_v4": 128, "inception_resnet_v2": 128, "alexnet": 96}


def networks() -> list[tuple[str, str]]:
    """Family and name of every network."""
    ours = [(family, name) for family, names in TORCHVISION.items() for name in names]
    return ours + [(family, f"timm/{name}") for family, names in TIMM.items() for name in names]


def awake(model: nn.Module) -> nn.Module:
    """The model with small random numbers added to all weights. Some libraries start the last norm of each branch at
    zero, where no gate can learn anything in the first step; a trained network has no such zeros."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model


def check_network(name: str, gates: list[str]) -> dict[str, dict[str, bool]] | str:
    """The promises by gate, or why no gate could be placed."""
    torch.manual_seed(0)
    model = awake(backbone(name, classes=10))
    side = LARGER.get(name.rpartition("/")[2], 64)
    example = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    result = {}
    try:
        for gate in gates:
            with tempfile.TemporaryDirectory() as folder:
                result[gate] = check_insertion(model, gate, example, folder=folder)
    except InputError as error:
        return str(error)
    return result


def surgery(gates: list[str], only: str, after: str) -> int:
    """Prints a line a network and the totals; returns how many promises were broken."""
    print(f"{'network':<34}{'family':<20}{'places':>7}  " + "".join(f"{gate:>14}" for gate in gates), flush=True)
    kept: Counter[str] = Counter()
    broken = 0
    everything = networks()
    names = [name for _, name in everything]
    begin = names.index(after) + 1 if after else 0
    for family, name in everything[begin:]:
        if only not in name:
            continue
        begun = time.perf_counter()
        found = check_network(name, gates)
        if isinstance(found, str):
            print(f"{name:<34}{family:<20}{'-':>7}  {found}", flush=True)
            kept["unplaced"] += 1
            continue
        places = len(find_gates(plug(backbone(name, classes=10), "eca")))
        cells = []
        for gate in gates:
            failed = [check for check in CHECKS if not found[gate].get(check, True)]
            broken += len(failed)
            cells.append(",".join(failed) if failed else f"{len(found[gate])} of {len(CHECKS)}")
        kept["torchvision" if not name.startswith("timm/") else "timm"] += 1
        seconds = time.perf_counter() - begun
        print(
            f"{name:<34}{family:<20}{places:>7}  " + "".join(f"{c:>14}" for c in cells) + f"  {seconds:.0f} s",
            flush=True,
        )
        gc.collect()
    print(f"\nnetworks with gates: {kept['torchvision']} of torchvision, {kept['timm']} of timm;", end=" ")
    print(f"without a place: {kept['unplaced']}; broken promises: {broken}")
    print(f"promises: {', '.join(CHECKS)}")
    return broken


# Overhead


def timms(model: nn.Module, gate: str) -> nn.Module:
    """The same network with timm's gates at the same places, by the plainest way there is."""
    from timm.layers import EcaModule, SEModule
    from timm.layers.cbam import CbamModule

    makers: dict[str, Callable[[int], nn.Module]] = {"se": SEModule, "eca": EcaModule, "cbam": CbamModule}
    places = [(row.path, row.channels) for row in plug(copy.deepcopy(model), "eca").gates]  # type: ignore[union-attr]
    for path, channels in places:
        model.set_submodule(path, nn.Sequential(model.get_submodule(path), makers[gate](channels)))
    return model


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def overhead(rounds: int) -> None:
    """Prints the time of each variant over that without gates, measured in turns, and the median of the ratios."""
    print(f"threads {torch.get_num_threads()}, float32, rounds {rounds}, median of the ratios to no gate in each round")
    for name, side, batch in (("resnet20", 32, 64), ("resnet50", 224, 4)):
        plain = backbone(name, classes=10)
        variants: dict[str, nn.Module] = {"none": plain}
        for gate in ("se", "eca", "cbam"):
            variants[f"{gate} ours"] = plug(copy.deepcopy(plain), gate, start="standard")
            variants[f"{gate} timm"] = timms(copy.deepcopy(plain), gate)
        x = torch.randn(batch, 3, side, side)
        for kind in ("training step", "inference"):
            times = {variant: [] for variant in variants}
            for turn in range(rounds + 1):
                for variant, model in variants.items():
                    spent = seconds(step(model, x) if kind == "training step" else inference(model, x))
                    if turn > 0:
                        times[variant].append(spent)
            print(
                f"\n{name}, {side}x{side}, batch {batch}, {kind}: none {statistics.median(times['none']) * 1e3:.1f} ms"
            )
            for gate in ("se", "eca", "cbam"):
                ratios = {
                    who: statistics.median(a / b for a, b in zip(times[f"{gate} {who}"], times["none"], strict=True))
                    for who in ("ours", "timm")
                }
                print(f"  {gate:<6} ours {ratios['ours']:.3f}   timm {ratios['timm']:.3f}")


def step(model: nn.Module, x: Tensor) -> Callable[[], object]:
    def work() -> None:
        model.train()
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()

    return work


def inference(model: nn.Module, x: Tensor) -> Callable[[], object]:
    def work() -> None:
        model.eval()
        with torch.inference_mode():
            model(x)

    return work


# Fine-tuning


def finetune(data: str, epochs: int, more: int, model: str, out: Path, base: Path | None) -> None:
    """Trains a network without gates (or takes the run `base`), plugs CBAM in and trains on, from either start, and
    without a gate beside them: what these steps do by themselves.

    By SGD at a hundredth of its usual learning rate: larger steps take a network that was annealed to zero away from
    where it was, whatever is plugged in. Prints the accuracy on the validation images before the first step, at its
    lowest and at the end, and draws it. Runs that `out` has of the same recipes are taken as they are."""
    plain = CnnRecipe(data=data, model=model, gate="none", epochs=epochs).located()
    run = Run.open(base, "cnn") if base is not None else trained(plain, out / "plain")
    plain = run.recipe(CnnRecipe)
    if plain.gate != "none":
        raise InputError(f"--trained {run.path}: has gates ({plain.gate}); give a run of --gate none")
    training, validation = load_for_training(plain)
    before = top1(load_model(run), validation)
    print(
        f"{plain.model}, without gates, {plain.budget_text}: {before:.2f}% of {len(validation)} validation images",
        flush=True,
    )
    figure = Figure(figsize=(10, 3.5), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes in panels:
        axes.axhline(before, color="grey", linestyle=":", label="before plugging")
    steps = max(1, len(training) // plain.batch_size // 10)
    further = replace(plain, weights=str(run.path.resolve()), epochs=more, steps=None, minutes=None, pretrained=False)
    further = replace(further, optimizer="sgd", learning_rate=1e-3, weight_decay=5e-4, validate_steps=steps)
    for name, label, recipe in (
        ("identity", "CBAM, identity start", replace(further, gate="cbam", start="identity")),
        ("standard", "CBAM, the papers' start", replace(further, gate="cbam", start="standard")),
        ("none", "no gate", further),
    ):
        seen = [top1(build(recipe, training), validation)]
        records = trained(recipe, out / name).metrics()
        records = [record for record in records if record["phase"] == "validation"]
        seen += [100 * record["top1"] for record in records]
        for axes in panels:
            axes.plot([0, *(record["step"] for record in records)], seen, marker="o", markersize=3, label=label)
        low = min(seen)
        print(
            f"  {label:<24} first {seen[0]:.2f}%, lowest {low:.2f}% ({low - before:+.2f}), last {seen[-1]:.2f}%",
            flush=True,
        )
    for axes in panels:
        axes.set_xlabel("step")
        axes.set_ylabel("validation accuracy, %")
    panels[0].legend()
    panels[1].set_ylim(before - 2.5, before + 1)
    panels[1].set_title("the same near the start", fontsize=10)
    figure.savefig(out / "finetune.png", dpi=130)
    print(f"plot: {out / 'finetune.png'}")


def top1(model: GatedCNN, images: ImageSet) -> float:
    """Accuracy in percent."""
    probabilities = predict_probabilities(model, images.images, mean=model.mean, std=model.std)
    return 100 * float((probabilities.argmax(dim=1) == images.labels).float().mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["surgery", "overhead", "finetune"])
    parser.add_argument("--gates", default=",".join(GATES), help="names with commas between them")
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--after", default="", help="begin after this network")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--epochs", type=int, default=10, help="of finetune: of the network without gates")
    parser.add_argument("--more", type=int, default=2, help="of finetune: epochs after the gates are plugged in")
    parser.add_argument("--trained", type=Path, help="of finetune: a run of a network without gates to begin with")
    parser.add_argument("--out", type=Path, default=Path("runs/finetune"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.what == "surgery":
        return min(surgery(arguments.gates.split(","), arguments.only, arguments.after), 1)
    if arguments.what == "overhead":
        overhead(arguments.rounds)
    else:
        finetune(arguments.data, arguments.epochs, arguments.more, arguments.model, arguments.out, arguments.trained)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        sys.exit(130)
