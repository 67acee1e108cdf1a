"""Attention does not know the order of its tokens unless told, and the ways to tell differ beyond the trained length.

Three facts. Without positions a permutation of the tokens permutes the outputs and does nothing else. The sinusoidal
code of a position k further is a linear map of the code, the same everywhere (Vaswani et al. 2017, section 3.5). And a
task that is about distance alone, "name the token three places back", trained on 16 tokens, is carried to twice that by
codes that act on distances (rotary: Su et al. 2021; relative: Shaw et al. 2018), and not by codes that are added to the
tokens, at the entry or in every layer.

Look at where each curve falls. From four times the trained length on rotary and relative fade too: the weight that each
wrong key gets is small, but there are ever more of them. ALiBi (Press et al. 2022) prefers what is near, smoothly: it
has no way to point at exactly three back, at any length.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from _common import COLOURS, PICTURES, figure, run, save, table, train
from torch import Tensor, nn

from mha_apps.attention import (
    ALiBi,
    Causal,
    Learned,
    MultiHeadAttention,
    RelativeBias,
    Rotary,
    Sinusoidal,
    TransformerBlock,
)

TOKENS, BACK, DIM, HEADS, DEPTH, TRAINED, STEPS = 8, 3, 32, 4, 2, 16, 300
LENGTHS = (8, 16, 24, 32, 64, 128)

# What is added to the tokens (at the entry, or before every block), and what acts inside the attention.
WAYS: dict[str, tuple[Callable[[], nn.Module] | None, bool, Callable[[], nn.Module] | None]] = {
    "none": (None, False, None),
    "learned": (lambda: Learned(TRAINED, DIM), False, None),
    "sinusoidal": (lambda: Sinusoidal(DIM), False, None),
    "sinusoidal, every layer": (lambda: Sinusoidal(DIM), True, None),
    "rotary": (None, False, Rotary),
    "relative": (None, False, lambda: RelativeBias(HEADS, max_distance=8)),
    "ALiBi": (None, False, lambda: ALiBi(HEADS)),
}


class Model(nn.Module):
    """Tokens to guesses of the token three places back, causally."""

    def __init__(self, way: str) -> None:
        super().__init__()
        added, self.every_layer, inside = WAYS[way]
        self.entry, self.exit = nn.Embedding(TOKENS, DIM), nn.Linear(DIM, TOKENS)
        nn.init.normal_(self.entry.weight, std=0.2)  # tokens that do not drown a position of 0.02
        self.added = nn.Identity() if added is None else added()
        self.blocks = nn.ModuleList(TransformerBlock(DIM, HEADS, position=inside) for _ in range(DEPTH))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.added(self.entry(tokens))
        for number, block in enumerate(self.blocks):
            x = block(self.added(x) if number and self.every_layer else x, Causal())
        return self.exit(x)[:, BACK:]


def learn(way: str, seed: int) -> dict[int, float]:
    """Accuracy at each length, after training at one."""
    torch.manual_seed(seed)
    model = Model(way)

    def loss() -> Tensor:
        tokens = torch.randint(TOKENS, (32, TRAINED))
        return F.cross_entropy(model(tokens).transpose(1, 2), tokens[:, :-BACK])

    train(model, loss, STEPS, 5e-3)
    accuracy = {}
    with torch.no_grad():
        for length in LENGTHS:
            tokens = torch.randint(TOKENS, (64, length))
            try:
                accuracy[length] = float((model(tokens).argmax(dim=2) == tokens[:, :-BACK]).float().mean())
            except ValueError:  # Learned has no vector for that position, and says so
                accuracy[length] = float("nan")
    return accuracy


def order_matters() -> tuple[float, float]:
    """How far the output of permuted tokens is from the permuted output, without positions and with."""
    x, order = torch.randn(1, 10, DIM), torch.randperm(10)
    differences = []
    for position in (None, Rotary()):
        attention = MultiHeadAttention(DIM, HEADS, position=position)
        differences.append(float((attention(x[:, order]) - attention(x)[:, order]).detach().abs().max()))
    return differences[0], differences[1]


def shift_is_linear(shift: int = 5) -> float:
    """Error of one matrix that shall map code(p) to code(p + shift) at a thousand positions."""
    code = Sinusoidal(DIM)
    half = DIM // 2
    angle = shift * code.base ** (-torch.arange(half) / half)
    sin, cos = angle.sin().diag(), angle.cos().diag()
    matrix = torch.cat([torch.cat([cos, -sin], dim=1), torch.cat([sin, cos], dim=1)])  # sin(a + b), cos(a + b)
    return float((code.code(1000) @ matrix - code.code(1000, start=shift)).abs().max())


def main(out: Path = PICTURES / "positions.png", seed: int = 0) -> dict[str, float]:
    torch.manual_seed(seed)
    without, with_positions = order_matters()
    linear = shift_is_linear()
    table(
        ["fact", "number"],
        [
            ("permuted tokens, without positions: largest change beyond the permutation", without),
            ("the same with rotary positions", with_positions),
            ("one matrix shifts the sinusoidal code by 5: largest error at 1,000 positions", linear),
        ],
    )
    accuracy = {way: learn(way, seed) for way in WAYS}
    table(["accuracy at length", *map(str, LENGTHS)], [(way, *found.values()) for way, found in accuracy.items()])
    draw(accuracy, out)
    twice, far = ({way: found[length] for way, found in accuracy.items()} for length in (2 * TRAINED, LENGTHS[-1]))
    print(
        f"Trained on {TRAINED} tokens and asked on {2 * TRAINED}, rotary names {twice['rotary']:.0%} and relative "
        f"{twice['relative']:.0%} rightly, sinusoidal {twice['sinusoidal']:.0%} (added in every layer "
        f"{twice['sinusoidal, every layer']:.0%}), ALiBi {twice['ALiBi']:.0%}, no positions {twice['none']:.0%}, and "
        f"learned ones end at {TRAINED}; at {LENGTHS[-1]} relative is at {far['relative']:.0%} and rotary at "
        f"{far['rotary']:.0%}, with chance at {1 / TOKENS:.0%}."
    )
    trained = {f"trained_{way}": found[TRAINED] for way, found in accuracy.items()}
    return {"without": without, "with": with_positions, "linear": linear, **twice, **trained}


def draw(accuracy: dict[str, dict[int, float]], out: Path) -> None:
    picture, (left, right) = figure(1, 2, height=3.4, width_ratios=[1, 1.7])
    left.imshow(Sinusoidal(DIM).code(64), cmap="cividis", aspect="auto", interpolation="nearest")
    left.set(xlabel="channel (sines, then cosines)", ylabel="position", title="the sinusoidal code")
    for colour, marker, (way, found) in zip(COLOURS, "osv^DPX", accuracy.items(), strict=True):
        right.plot(LENGTHS, list(found.values()), marker=marker, color=colour, label=way)
    right.axvline(TRAINED, color="0.5", ls="--", lw=1)
    right.text(TRAINED * 1.03, 0.02, "trained length:\nlearned ones end", color="0.4")
    right.set(xlabel="length, tokens", ylabel="accuracy", ylim=(0, 1.03), title=f"naming the token {BACK} places back")
    right.set_xscale("log", base=2)
    right.set_xticks(LENGTHS, LENGTHS)
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    save(picture, out)


if __name__ == "__main__":
    run(main, __doc__)
