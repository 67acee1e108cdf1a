"""One head against eight with equal parameters, on a task with two relations at once.

Each token must report two others: its left neighbour (a relation of place) and the token of its own colour (a
relation of content). A head mixes all that it looks at with one set of weights, and its value projection is the same
for all, so that it can tell *what* it saw but not *in which role*. For two independent relations that leaves half of
the variance, however it weighs them: with weights a and b the two errors are 1 - a²/(a² + b²) and 1 - b²/(a² + b²),
whose mean is 1/2. Heads with projections of their own have no such bound ("attend to information from different
representation subspaces at different positions", Vaswani et al. 2017, section 3.2.2).

Look at the seeds: two heads would do, but every head starts on the relation that is easier to learn, and with few of
them none may be left for the other. More heads are more tickets.
"""

from pathlib import Path

import torch
from _common import COLOURS, PICTURES, figure, run, save, table, train
from torch import Tensor, nn

from mha_apps.attention import MultiHeadAttention, record_attention

LENGTH, CHANNELS, DIM, STEPS, RATE = 8, 16, 64, 500, 3e-3
HEADS = (1, 2, 8)


def sample(batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens (value, colour, place), targets (left neighbour's and partner's value), and where both stand."""
    place = torch.arange(LENGTH).expand(8 * batch, LENGTH)
    left = (place - 1) % LENGTH
    colour = torch.rand(8 * batch, LENGTH).argsort(dim=1) // 2  # each colour on two tokens
    same = (colour[:, :, None] == colour[:, None, :]) & ~torch.eye(LENGTH, dtype=torch.bool)
    partner = same.int().argmax(dim=2)
    # Where both relations meet in one token, one look is enough: leave such sequences out.
    kept = (partner != left).all(dim=1).nonzero()[:batch, 0]
    colour, partner, left, place = colour[kept], partner[kept], left[kept], place[kept]
    value = torch.randn(batch, LENGTH, CHANNELS)
    one_hot = nn.functional.one_hot
    x = torch.cat([value, one_hot(colour, LENGTH // 2), one_hot(place, LENGTH)], dim=2)
    target = torch.cat([value.gather(1, i[..., None].expand_as(value)) for i in (left, partner)], dim=2)
    return x, target, left, partner


class Reporter(nn.Module):
    """One attention layer between two linear maps: nothing else could bring tokens together."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.entry = nn.Linear(CHANNELS + LENGTH // 2 + LENGTH, DIM)
        self.attention = MultiHeadAttention(DIM, heads)  # the only line in which the models differ
        self.exit = nn.Linear(DIM, 2 * CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.exit(self.attention(self.entry(x)))


def learn(heads: int, seed: int) -> tuple[Reporter, list[float]]:
    torch.manual_seed(seed)
    model = Reporter(heads)

    def loss() -> Tensor:
        x, target, *_ = sample(64)
        return (model(x) - target).square().mean()  # the targets' variance is 1

    return model, train(model, loss, STEPS, RATE)


@torch.no_grad()
def judge(model: Reporter, seed: int) -> tuple[float, Tensor, Tensor]:
    """Unexplained variance on new tokens; each head's mean weight on the left neighbour and on the partner."""
    torch.manual_seed(seed + 1000)
    x, target, left, partner = sample(1000)
    with record_attention(model) as maps:
        error = float((model(x) - target).square().mean())
    masses = []
    for relation in (left, partner):
        mass = maps[0].gather(3, relation[:, None, :, None].expand(-1, maps[0].shape[1], -1, -1))
        masses.append(mass.mean(dim=(0, 2, 3)))
    return error, *masses


def main(out: Path = PICTURES / "one_head_or_many.png", seed: int = 0) -> dict[str, float]:
    seeds = (seed, seed + 1, seed + 2)
    errors, curves, sizes = {}, {}, {}
    for heads in HEADS:
        for number in seeds:
            model, curves[heads, number] = learn(heads, number)
            errors[heads, number], *shares = judge(model, number)
        sizes[heads] = sum(parameter.numel() for parameter in model.parameters())
    table(
        ["heads", "parameters", *(f"unexplained, seed {number}" for number in seeds)],
        [(heads, sizes[heads], *(errors[heads, number] for number in seeds)) for heads in HEADS],
    )
    best, worst = ({h: pick(errors[h, n] for n in seeds) for h in HEADS} for pick in (min, max))
    draw(curves, shares, out)
    print(
        f"With equal parameters one head leaves {best[1]:.1%} of the variance at best (its bound is 50%), eight heads "
        f"{worst[8]:.1%} at worst; two heads come to {best[2]:.1%} and to {worst[2]:.1%}, depending on the seed."
    )
    return {
        "one_best": best[1], "eight_worst": worst[8], "two_best": best[2], "two_worst": worst[2],
        "sizes": float(len(set(sizes.values()))),
    }  # fmt: skip


def draw(curves: dict[tuple[int, int], list[float]], shares: list[Tensor], out: Path) -> None:
    picture, (left, right) = figure(1, 2, height=3.3)
    for colour, heads in zip(COLOURS, HEADS, strict=False):
        label = f"{heads} head{'s' * (heads > 1)}"
        for losses in (losses for (number, _), losses in curves.items() if number == heads):
            smooth = torch.tensor(losses).unfold(0, 10, 10).mean(dim=1)
            left.plot(range(5, STEPS, 10), smooth, color=colour, label=label)
            label = None
    left.axhline(0.5, color="0.5", ls="--", lw=1)
    left.text(STEPS, 0.51, "bound of one head", va="bottom", ha="right", color="0.4")
    left.set(xlabel="optimizer step", ylabel="unexplained variance", ylim=(0, 1.05), title="learning, three seeds each")
    left.legend(loc="upper right")
    heads = torch.arange(1, len(shares[0]) + 1)
    right.bar(heads - 0.2, shares[0], 0.4, color=COLOURS[0], label="left neighbour")
    right.bar(heads + 0.2, shares[1], 0.4, color=COLOURS[1], label="same colour")
    right.set(
        xlabel="head", ylabel="mean attention weight", ylim=(0, 1.3), xticks=heads, title="what eight heads look at"
    )
    right.legend(ncols=2, loc="upper center")
    save(picture, out)


if __name__ == "__main__":
    run(main, __doc__)
