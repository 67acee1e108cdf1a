"""What masks look like, and what three mistakes with them cost.

The source of the data is a Markov chain, whose entropy per token is known. No model that sees only the past can get
below it: a loss under the entropy is proof of a leak. Look at the bars below the dashed line. A flipped mask (True
meant "may not attend", as in ``nn.MultiheadAttention``) shows each token the answer, so that training looks wonderful
and the model is useless where there is no answer to read. Scores of forbidden keys that are set to 0 in place of minus
infinity still get exp(0) = 1 in the softmax. And a query that may attend to nothing is NaN in a plain softmax, zero in
the core.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from _common import BLUE, GREEN, ORANGE, PICTURES, figure, run, save, table, train
from einops import rearrange
from matplotlib.colors import ListedColormap
from torch import Tensor, nn

from mha_apps.attention import (
    Causal,
    Dilated,
    Encoder,
    Global,
    Mask,
    MultiHeadAttention,
    Padding,
    PerHead,
    Sinusoidal,
    Strided,
    Window,
)  # fmt: skip

TOKENS, LENGTH, STEPS = 16, 24, 200

PATTERNS: dict[str, Mask] = {
    "Padding([9])": Padding([9]),
    "Causal()": Causal(),
    "Causal() & Padding([9])": Causal() & Padding([9]),
    "Window(2, 2)": Window(2, 2),
    "Strided(4)": Strided(4),
    "Dilated(2, 3)": Dilated(2, 3),
    "Window(2, 2) | Global([0])": Window(2, 2) | Global([0]),
    "PerHead([Window(3, 0), Strided(4)])": PerHead([Window(3, 0), Strided(4)]),
}


def weights_with(scores: Tensor, mask: Mask, fill: float) -> Tensor:
    """Attention weights, with ``fill`` as the score of each forbidden pair."""
    return scores.masked_fill(~mask.materialize(*scores.shape[-2:]), fill).softmax(dim=-1)


class Filled(MultiHeadAttention):
    """The mistake: forbidden scores are set to ``fill``, which is not minus infinity."""

    fill = 0.0

    def forward(self, x: Tensor, *_: object, mask: Mask, **options: object) -> Tensor:
        projected = self.query(x), self.key(x), self.value(x)
        query, key, value = (rearrange(y, "b l (h d) -> b h l d", h=self.heads) for y in projected)
        weights = weights_with(query @ key.mT / self.head_dim**0.5, mask, self.fill)
        return self.output(rearrange(weights @ value, "b h l d -> b l (h d)"))


class Chain:
    """A Markov chain of 16 tokens."""

    def __init__(self) -> None:
        self.next = torch.distributions.Dirichlet(torch.full((TOKENS,), 0.2)).sample((TOKENS,))
        self.often = torch.linalg.matrix_power(self.next, 1000)[0]
        self.entropy = float((self.often * torch.special.entr(self.next).sum(dim=1)).sum())  # nats per token

    def sample(self, batch: int, length: int) -> Tensor:
        tokens = [torch.multinomial(self.often, batch, replacement=True)]
        for _ in range(length - 1):
            tokens.append(torch.multinomial(self.next[tokens[-1]], 1)[:, 0])
        return torch.stack(tokens, dim=1)


class Predictor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry, self.position = nn.Embedding(TOKENS, 64), Sinusoidal(64)
        self.encoder, self.exit = Encoder(64, 4, 2, mlp_ratio=2), nn.Linear(64, TOKENS)

    def loss(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Cross-entropy of each next token, nats."""
        x = self.encoder(self.position(self.entry(tokens[:, :-1])), mask)
        return F.cross_entropy(self.exit(x).transpose(1, 2), tokens[:, 1:])


def experiment(chain: Chain, mask: Mask, filled: bool, seed: int) -> tuple[float, float]:
    """Loss of a model trained with a mask, as its training sees it and where the future is really absent."""
    torch.manual_seed(seed)
    model = Predictor()
    if filled:
        for block in model.encoder.blocks:
            block.attention = Filled(64, 4)
    losses = train(model, lambda: model.loss(chain.sample(32, LENGTH + 1), mask), STEPS, 3e-3)
    for block in model.encoder.blocks:
        block.attention.fill = float("-inf")
    with torch.no_grad():
        honest = float(model.loss(chain.sample(1000, LENGTH + 1), Causal()))
    return sum(losses[-20:]) / 20, honest


def main(out: Path = PICTURES / "masks.png", seed: int = 0) -> dict[str, float]:
    torch.manual_seed(seed)
    chain = Chain()
    mistakes = {"right": (Causal(), False), "flipped": (~Causal(), False), "0 for -inf": (Causal(), True)}
    losses = {name: experiment(chain, mask, filled, seed) for name, (mask, filled) in mistakes.items()}
    table(
        ["mask", "loss in training", "without the future", "entropy of the source"],
        [(name, *pair, chain.entropy) for name, pair in losses.items()],
    )

    lengths, fills = (8, 32, 128, 512), (0.0, -10.0, -1e9)
    leaks: dict[int, list[float]] = {}
    for length in lengths:
        scores = torch.randn(1, 20, length, length)  # of unit variance, as when training begins
        future = ~Causal().materialize(length, length)
        leaks[length] = [float((weights_with(scores, Causal(), fill) * future).sum() / (20 * length)) for fill in fills]
    table(["length", *(f"weight on the future, fill {fill:g}" for fill in fills)], [(n, *leaks[n]) for n in lengths])

    padded = torch.randn(1, 4, 64)
    nothing = MultiHeadAttention(64, 4)(padded, mask=Padding([0]))
    plain = weights_with(torch.randn(1, 4, 4), Padding([0]), float("-inf"))
    draw(losses, chain.entropy, out)
    print(
        f"At an entropy of {chain.entropy:.2f} nats the right mask trains to {losses['right'][0]:.2f}, the flipped one "
        f"to {losses['flipped'][0]:.2f} and is at {losses['flipped'][1]:.2f} without the answers; 0 in place of -inf "
        f"puts {leaks[512][0]:.0%} of the weight on the future and trains to {losses['0 for -inf'][0]:.2f}."
    )
    return {
        "entropy": chain.entropy, "right": losses["right"][1], "flipped": losses["flipped"][0],
        "flipped_honest": losses["flipped"][1], "zero": losses["0 for -inf"][0],
        "zero_honest": losses["0 for -inf"][1], "leak": leaks[512][0], "leak_large": leaks[512][2],
        "nothing_is_finite": float(nothing.isfinite().all()), "plain_is_nan": float(plain.isnan().all()),
    }  # fmt: skip


def draw(losses: dict[str, tuple[float, float]], entropy: float, out: Path) -> None:
    picture, axes = figure(3, 4, height=6.4, height_ratios=[1, 1, 1.1])
    for ax, (name, mask) in zip(axes[:2].flat, PATTERNS.items(), strict=True):
        allowed = mask.materialize(16, 16)[0]
        # Heads of their own patterns: the first is blue, the second orange, both green.
        drawn = allowed[0].int() if len(allowed) == 1 else allowed[0] + 2 * allowed[1].int()
        ax.imshow(drawn, cmap=ListedColormap(["#eeeeee", BLUE, ORANGE, GREEN]), vmin=0, vmax=3)
        ax.set_title(name.replace("(3, 0), ", "(3, 0),\n"), fontsize=8)
        ax.set(xticks=[0, 15], yticks=[0, 15])
    axes[0, 0].set(xlabel="key", ylabel="query")
    grid = axes[2, 0].get_gridspec()
    for ax in axes[2]:
        ax.remove()
    ax = picture.add_subplot(grid[2, :])
    for row, (seen, honest) in enumerate(losses.values()):
        for offset, value, colour in ((-0.2, seen, BLUE), (0.2, honest, ORANGE)):
            label = None if row else "in training" if colour == BLUE else "where the future is absent"
            ax.barh(row + offset, value, 0.38, color=colour, label=label)
            ax.text(
                value + 0.03, row + offset, f"{value:.2f}", va="center", bbox={"fc": "white", "ec": "none", "pad": 1}
            )
    ax.axvline(entropy, color="black", ls="--", lw=1)
    ax.text(entropy + 0.03, -0.65, "entropy of the source: below it, the model sees the answers", va="center")
    ax.set(yticks=range(len(losses)), xlabel="loss, nats per token", ylim=(len(losses) - 0.4, -0.9))
    ax.set_yticklabels(losses)
    ax.legend(loc="upper right", bbox_to_anchor=(1, 0.9))
    save(picture, out)


if __name__ == "__main__":
    run(main, __doc__)
