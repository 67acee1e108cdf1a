"""Where the norm stands decides how deep one can train without care, and where dropout stands what it does.

Post-norm, as in Vaswani et al. 2017, normalizes the sum of a branch and its input; pre-norm normalizes the input of
the branch and leaves a straight way through. At the start the last block's gradient is larger with post-norm, by the
order of the root of the depth (Xiong et al. 2020, theorem 1): too large for a full learning rate, which is why deep
post-norm needs warm-up and pre-norm does not. Look at the left panel for the gradients before any training, and at the
middle one for where each depth ends with warm-up and without.

Dropout on the attention weights leaves the expected output what it was, and so does dropout on the output. On queries
and keys it does not: it changes the scores, and softmax of a noisy score is not on average the softmax of the score.
Look at the right panel: the part of the change that averaging over many draws does not take away.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from _common import BLUE, COLOURS, GREEN, ORANGE, PICTURES, figure, run, save, table, train
from torch import Tensor, nn

from mha_apps.attention import Causal, Encoder, MultiHeadAttention, Rotary

TOKENS, LENGTH, BACK, DIM, HEADS, STEPS, RATE = 8, 12, 2, 32, 4, 120, 5e-3
DEPTHS = (2, 6, 12)


class Copier(nn.Module):
    """Names the token two places back: easy, if the gradient gets through."""

    def __init__(self, depth: int, norm: str) -> None:
        super().__init__()
        self.entry, self.exit = nn.Embedding(TOKENS, DIM), nn.Linear(DIM, TOKENS)
        self.encoder = Encoder(DIM, HEADS, depth, norm=norm, mlp_ratio=2, position=Rotary)

    def loss(self) -> Tensor:
        tokens = torch.randint(TOKENS, (16, LENGTH))
        logits = self.exit(self.encoder(self.entry(tokens), Causal()))[:, BACK:]
        return F.cross_entropy(logits.transpose(1, 2), tokens[:, :-BACK])


def gradients_at_start(norm: str, seed: int) -> list[float]:
    """Norm of the gradient of each block's parameters, before any step."""
    torch.manual_seed(seed)
    model = Copier(DEPTHS[-1], norm)
    model.loss().backward()
    return [float(torch.stack([p.grad.norm() for p in block.parameters()]).norm()) for block in model.encoder.blocks]


def learn(depth: int, norm: str, warmup: float, seed: int) -> float:
    """Mean loss of the last 20 steps, nats."""
    torch.manual_seed(seed)
    model = Copier(depth, norm)
    return sum(train(model, model.loss, STEPS, RATE, warmup=warmup)[-20:]) / 20


@torch.no_grad()
def dropout_at(place: str, rate: float, seed: int, draws: int = 4000) -> tuple[float, float]:
    """Change of the mean output over many draws, and spread of one draw, over the output's own size."""
    torch.manual_seed(seed)
    attention = MultiHeadAttention(DIM, HEADS).eval()
    attention.query.weight *= 4  # scores as sharp as a trained model's
    x = torch.randn(1, LENGTH, DIM)
    clean = attention(x)
    if place == "queries and keys":
        attention.query = nn.Sequential(attention.query, nn.Dropout(rate))
        attention.key = nn.Sequential(attention.key, nn.Dropout(rate))
    attention.dropout = rate if place == "weights" else 0.0
    noisy = attention.train()(x.expand(draws, -1, -1))
    noisy = F.dropout(noisy, rate) if place == "output" else noisy
    return float((noisy.mean(dim=0) - clean).norm() / clean.norm()), float(noisy.std(dim=0).norm() / clean.norm())


def main(out: Path = PICTURES / "training_stability.png", seed: int = 0) -> dict[str, float]:
    gradients = {norm: gradients_at_start(norm, seed) for norm in ("pre", "post")}
    ratio = gradients["post"][-1] / gradients["pre"][-1]
    losses = {
        (norm, warmup): [learn(depth, norm, warmup, seed) for depth in DEPTHS]
        for norm in ("pre", "post")
        for warmup in (0.3, 0.0)
    }
    table(
        ["norm", "warm-up", *(f"loss at depth {depth}" for depth in DEPTHS), "gradient of the last block"],
        [(norm, f"{warmup:.0%}", *found, gradients[norm][-1]) for (norm, warmup), found in losses.items()],
    )
    places, rate = ("weights", "output", "queries and keys"), 0.1
    dropped = {place: dropout_at(place, rate, seed) for place in places}
    table([f"dropout of {rate} on", "change of the mean", "spread of a draw"], [(p, *dropped[p]) for p in places])
    draw(gradients, losses, dropped, out)
    deepest = {case: found[-1] for case, found in losses.items()}
    print(
        f"At depth {DEPTHS[-1]} the last block's gradient is at first {ratio:.1f} times as large with post-norm "
        f"as with pre-norm (root of the depth: {DEPTHS[-1] ** 0.5:.1f}); after {STEPS} steps pre-norm is at a loss of "
        f"{deepest['pre', 0.0]:.2f} without warm-up and {deepest['pre', 0.3]:.2f} with it, post-norm at "
        f"{deepest['post', 0.0]:.2f} and {deepest['post', 0.3]:.2f}; dropout of {rate} on queries and keys shifts the "
        f"mean output by {dropped['queries and keys'][0]:.1%}, on the weights by {dropped['weights'][0]:.1%}."
    )
    return {
        "gradient": ratio,
        **{f"{norm}_{'warm' if warmup else 'cold'}": loss for (norm, warmup), loss in deepest.items()},
        **{f"shift_{place}": shift for place, (shift, _) in dropped.items()},
    }  # fmt: skip


def draw(
    gradients: dict[str, list[float]],
    losses: dict[tuple[str, float], list[float]],
    dropped: dict[str, tuple[float, float]],
    out: Path,
) -> None:
    picture, (left, middle, right) = figure(1, 3, height=3.2)
    colours = {"pre": BLUE, "post": ORANGE}
    for norm, found in gradients.items():
        left.plot(range(1, len(found) + 1), found, "o-", color=colours[norm], label=f"{norm}-norm")
    left.set(
        xlabel="block", ylabel="norm of the gradient", yscale="log", title="before the first step", xticks=[1, 6, 12]
    )
    left.yaxis.set_minor_formatter("{x:.1f}")
    left.legend()
    for (norm, warmup), found in losses.items():
        label = f"{norm}-norm, {'warm-up' if warmup else 'no warm-up'}"
        middle.plot(DEPTHS, found, "o-" if warmup else "s:", color=colours[norm], label=label)
    middle.axhline(torch.tensor(TOKENS).log(), color="0.5", ls="--", lw=1)
    middle.text(DEPTHS[0], 2.11, "guessing", color="0.4")
    middle.set(xlabel="blocks", ylabel="loss, nats", ylim=(0, 2.4), title=f"after {STEPS} steps", xticks=DEPTHS)
    middle.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0, 0.86))
    for row, (colour, (shift, _)) in enumerate(zip((BLUE, GREEN, COLOURS[3]), dropped.values(), strict=True)):
        right.bar(row, 100 * shift, color=colour)
        right.text(row, 100 * shift, f"{shift:.1%}", ha="center", va="bottom")
    right.set_xticks(range(3), ["weights", "output", "queries\nand keys"])
    right.set(ylabel="shift of the mean output, %", title="dropout of 0.1 on")
    save(picture, out)


if __name__ == "__main__":
    run(main, __doc__)
