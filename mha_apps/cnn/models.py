"""The networks that gates are tried in: the small ResNets of the CIFAR papers, torchvision's and timm's by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from mha_apps.cnn.places import nearest
from mha_apps.cnn.surgery import GateTable, Placement, gate_parameters, plug, rearm
from mha_apps.errors import InputError

__all__ = ["CifarResNet", "GatedCNN", "backbone", "model_channels"]

CIFAR_RESNETS = {f"resnet{depth}": depth for depth in (8, 14, 20, 32, 44, 56, 110)}
SMALL_STEM = "resnet18_3x3"


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without weights: strided, and padded with zero channels (He et al. 2016,
    arXiv:1512.03385, section 4.2, option A)."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.added = stride, width - width_in

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.stride > 1 or self.added:
            shortcut = F.pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.added // 2, -(-self.added // 2))
            )
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


class CifarResNet(nn.Module):
    """The ResNet for images of 32x32 (He et al. 2016, arXiv:1512.03385, section 4.2).

    Args:
        depth: 6n + 2 layers for n blocks in each of three stages; 20, 32, 44, 56 in the paper.
        classes: number of outputs.
        channels: channels of the image.

    Raises:
        ValueError: the depth is not 6n + 2.
    """

    def __init__(self, depth: int = 20, *, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth={depth} must be 6n + 2: 20, 32, 44, 56, ...")
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks = (depth - 2) // 6
        self.layer1 = self._stage(16, 16, blocks, stride=1)
        self.layer2 = self._stage(16, 32, blocks, stride=2)
        self.layer3 = self._stage(32, 64, blocks, stride=2)
        self.fc = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def _stage(width_in: int, width: int, blocks: int, stride: int) -> nn.Sequential:
        rest = [BasicBlock(width, width, 1) for _ in range(blocks - 1)]
        return nn.Sequential(BasicBlock(width_in, width, stride), *rest)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of normalised images (batch, channels, height, width)."""
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def model_channels(name: str) -> int | None:
    """How many image channels the network called `name` takes: 3 for torchvision's, any (None) for the others."""
    return 3 if _library(name)[0] == "torchvision" else None


def backbone(name: str, *, classes: int, channels: int = 3, pretrained: bool = False) -> nn.Module:
    """The network called `name`.

    Args:
        name: `resnet8`, `resnet14`, `resnet20`, `resnet32`, `resnet44`, `resnet56` or `resnet110` of the CIFAR
            papers, `resnet18_3x3`, or a name of torchvision's or timm's; a name that both have is torchvision's, and
            `timm/NAME` is timm's.
        classes: number of outputs.
        channels: channels of the image.
        pretrained: download the weights that the library has for it; the last layer is new if the classes differ.

    Raises:
        InputError: no such network, or no such weights.
    """
    library, short = _library(name)
    if library == "cifar":
        if pretrained:
            raise InputError(f"model {name!r} has no pretrained weights; train it and continue with --weights RUN")
        if short == SMALL_STEM:
            return _small_stem_resnet18(classes, channels)
        return CifarResNet(CIFAR_RESNETS[short], classes=classes, channels=channels)
    try:
        if library == "timm":
            import timm

            return timm.create_model(short, pretrained=pretrained, num_classes=classes, in_chans=channels)
        return _torchvision(short, classes, channels, pretrained)
    except (RuntimeError, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"model {name!r} cannot be made: {error}") from error


def _library(name: str) -> tuple[str, str]:
    """Where a network comes from, and its name there."""
    if name in CIFAR_RESNETS or name == SMALL_STEM:
        return "cifar", name
    import torchvision

    theirs = torchvision.models.list_models(module=torchvision.models)
    prefix, _, short = name.rpartition("/")
    if name in theirs or (prefix == "torchvision" and short in theirs):
        return "torchvision", short
    import timm

    if timm.is_model(short) and prefix in ("", "timm"):
        return "timm", short
    near = nearest(short, [*CIFAR_RESNETS, SMALL_STEM, *theirs, *timm.list_models()])
    raise InputError(f"model {name!r} is unknown; the nearest are {', '.join(near)}")


def _torchvision(name: str, classes: int, channels: int, pretrained: bool) -> nn.Module:
    import torchvision

    if channels != 3:
        raise InputError(f"model {name!r} of torchvision takes 3 channels, got {channels}; use timm/{name}")
    # Their second head would make the training output a pair.
    options: dict[str, Any] = {"aux_logits": False} if name in ("inception_v3", "googlenet") else {}
    if options and not pretrained:
        options["init_weights"] = True
    if not pretrained:
        return torchvision.models.get_model(name, weights=None, num_classes=classes, **options)
    model = torchvision.models.get_model(name, weights="DEFAULT", **options)
    path, head = list((p, m) for p, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d)))[-1]
    if isinstance(head, nn.Linear) and head.out_features != classes:
        model.set_submodule(path, nn.Linear(head.in_features, classes))
    elif isinstance(head, nn.Conv2d) and head.out_channels != classes:
        model.set_submodule(path, nn.Conv2d(head.in_channels, classes, head.kernel_size))  # type: ignore[arg-type]
    return model


def _small_stem_resnet18(classes: int, channels: int) -> nn.Module:
    from torchvision.models import resnet18

    model = resnet18(num_classes=classes)
    model.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


class GatedCNN(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="mha_apps",
    tags=["image-classification", "attention-gates"],
    license="apache-2.0",
):
    """A classifier of images with gates, which `save_pretrained` and `from_pretrained` write and read whole.

    Args:
        model: name of the network, see `backbone`.
        classes: names of the classes.
        gate: a name in `GATES`, or `none`.
        where: see `plug`; names only, no function. The saved configuration lists the places that were found.
        start: `identity` or `standard`.
        options: more arguments of the gate.
        channels, image_size: of the images, (height, width) in pixels.
        mean, std: of each channel of the training images scaled to 0..1; `forward` expects images less and over these.
        seed: of the gates' weights.

    Raises:
        InputError: see `backbone` and `plug`.
    """

    def __init__(
        self,
        *,
        model: str,
        classes: Sequence[str],
        gate: str = "none",
        where: str | list[str] = "auto",
        start: str = "identity",
        options: dict[str, Any] | None = None,
        channels: int = 3,
        image_size: Sequence[int] = (32, 32),
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.25, 0.25, 0.25),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.model_name, self.gate, self.start = model, gate, start
        self.classes, self.channels, self.image_size = tuple(classes), channels, tuple(image_size)
        self.mean, self.std = list(mean), list(std)
        self.backbone = backbone(model, classes=len(classes), channels=channels)
        if gate != "none":
            example = torch.zeros(2, channels, *self.image_size)
            plug(self.backbone, gate, where, start, example=example, seed=seed, **(options or {}))  # type: ignore[arg-type]
            # What `auto` finds may change between versions; the places of saved weights must not.
            self._hub_mixin_config["where"] = [row.path for row in self.backbone.gates]  # type: ignore[index,union-attr]
        # Channels last: on a CPU a ResNet-20 trains 1.2 times and answers 1.5 times as fast, and half precision on a
        # GPU wants it too. It changes how tensors lie in memory, not what they hold.
        self.to(memory_format=torch.channels_last)

    @property
    def gates(self) -> GateTable | list[Placement]:
        """What was plugged in where; empty without a gate, and after `unplug`."""
        return getattr(self.backbone, "gates", [])

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of normalised images (batch, channels, height, width)."""
        return self.backbone(x)

    def train(self, mode: bool = True) -> GatedCNN:
        # The conversion to synchronised batch norm drops the hooks, and every trainer calls this after it.
        rearm(self)
        return super().train(mode)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        if not hasattr(state_dict, "_metadata"):
            # Files of tensors carry no versions of the modules; some of torchvision's networks insist on one.
            state_dict = OrderedDict(state_dict)
            state_dict._metadata = self.state_dict()._metadata  # type: ignore[attr-defined]
        return super().load_state_dict(state_dict, strict, assign)

    def parameter_groups(self, *, learning_rate: float, weight_decay: float, gate_rate: float) -> list[dict[str, Any]]:
        """Groups for the optimiser: the gates at `gate_rate` times the learning rate, no decay of biases and norms."""
        gates = {id(parameter) for parameter in gate_parameters(self)}
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for parameter in self.parameters():
            rate = learning_rate * (gate_rate if id(parameter) in gates else 1.0)
            decay = weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
        return [
            {"params": parameters, "lr": rate, "weight_decay": decay} for (rate, decay), parameters in groups.items()
        ]
