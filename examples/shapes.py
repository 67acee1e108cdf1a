"""Every tensor on its way through multi-head attention, and where a block's parameters are.

Batch 2, length 10, 64 channels, 8 heads of 8 (Vaswani et al. 2017, section 3.2). Look at the heads' axis: splitting
is a view of the same numbers, so that eight heads cost what one costs, and what follows is a batch of small matrix
products. The wrong split, a plain ``view`` to (batch, heads, length, head_dim), has the right shape and mixes tokens.
"""

from pathlib import Path

import torch
from _common import BLUE, GREEN, ORANGE, PICTURES, figure, run, save, table
from einops import rearrange
from matplotlib.patches import FancyBboxPatch
from torch import Tensor, nn

from mha_apps.attention import MultiHeadAttention, TransformerBlock

BATCH, LENGTH, DIM, HEADS = 2, 10, 64, 8


def attend(attention: MultiHeadAttention, x: Tensor) -> tuple[Tensor, list[tuple[str, str, Tensor]]]:
    """The module's arithmetic, step by step."""
    steps = [("x", "batch, length, dim", x)]
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    steps.append(("query, key, value", "batch, length, heads * head_dim", query))
    query, key, value = (rearrange(y, "b l (h d) -> b h l d", h=HEADS) for y in (query, key, value))
    steps.append(("split into heads", "batch, heads, length, head_dim", query))
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    steps.append(("scores", "batch, heads, query, key", scores))
    weights = scores.softmax(dim=-1)
    steps.append(("weights (rows sum to 1)", "batch, heads, query, key", weights))
    out = weights @ value
    steps.append(("each head's result", "batch, heads, length, head_dim", out))
    out = rearrange(out, "b h l d -> b l (h d)")
    steps.append(("heads side by side", "batch, length, heads * head_dim", out))
    out = attention.output(out)
    steps.append(("output", "batch, length, dim", out))
    return out, steps


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def view_fails(x: Tensor) -> str:
    """What torch says when heads that were transposed are merged with ``view``."""
    heads = x.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)  # (batch, heads, length, head_dim): strides are swapped
    try:
        heads.view(BATCH, LENGTH, DIM)  # a view cannot walk memory in this order; reshape or contiguous() copies
    except RuntimeError as error:
        return str(error).split(".")[0]
    return ""


@torch.no_grad()
def main(out: Path = PICTURES / "shapes.png", seed: int = 0) -> dict[str, float]:
    torch.manual_seed(seed)
    attention = MultiHeadAttention(DIM, HEADS)
    x = torch.randn(BATCH, LENGTH, DIM)
    result, steps = attend(attention, x)
    difference = float((result - attention(x)).abs().max())
    table(["tensor", "axes", "shape"], [(name, axes, str(tuple(tensor.shape))) for name, axes, tensor in steps])

    one, eight = count(MultiHeadAttention(DIM, 1)), count(attention)
    block = TransformerBlock(DIM, HEADS)
    parts = {
        "attention": count(block.attention),
        "feed-forward": count(block.feed_forward),
        "two norms": count(block.attention_norm) + count(block.feed_forward_norm),
    }
    share = parts["feed-forward"] / count(block)
    table(["part of a block", "parameters"], list(parts.items()))

    query = attention.query(x)
    right = rearrange(query, "b l (h d) -> b h l d", h=HEADS)
    wrong = query.view(BATCH, HEADS, LENGTH, -1)  # same shape, other numbers: token 0 fills the whole first head
    misplaced = float((right != wrong).float().mean())
    message = view_fails(query)
    print(f"view after transpose: {message}\n")

    draw([(name, tuple(tensor.shape)) for name, _, tensor in steps], parts, out)
    print(
        f"The steps by hand and the module differ by {difference:.0e}; {HEADS} heads have {eight:,} parameters and one "
        f"head {one:,}; {share:.0%} of a block's parameters are the feed-forward's; and a plain view into heads puts "
        f"{misplaced:.0%} of the numbers in the wrong place without an error."
    )
    return {
        "difference": difference, "one_head": one, "eight_heads": eight, "feed_forward_share": share,
        "misplaced": misplaced, "view_fails": float(bool(message)),
    }  # fmt: skip


def draw(steps: list[tuple[str, tuple[int, ...]]], parts: dict[str, int], out: Path) -> None:
    picture, (flow, bar) = figure(1, 2, height=4.0, width_ratios=[2.6, 1])
    flow.set(
        xlim=(0, 10), ylim=(len(steps), 0), title=f"shapes: batch {BATCH}, length {LENGTH}, dim {DIM}, {HEADS} heads"
    )
    flow.set_axis_off()
    for row, (name, shape) in enumerate(steps):
        # The heads' axis is what is new: those tensors are orange.
        colour = ORANGE if len(shape) == 4 else BLUE
        box = FancyBboxPatch((4.2, row + 0.2), 5.2, 0.55, boxstyle="round,pad=0.05", fc=colour, ec="none", alpha=0.25)
        flow.add_patch(box)
        flow.text(6.8, row + 0.49, " × ".join(map(str, shape)), ha="center", va="center", family="monospace")
        flow.text(3.8, row + 0.49, name, ha="right", va="center")
        if row:
            flow.annotate("", (6.8, row + 0.16), (6.8, row - 0.2), arrowprops={"arrowstyle": "->", "color": "0.4"})
    bottom = 0
    for (name, number), colour in zip(parts.items(), (BLUE, GREEN, "0.4"), strict=True):
        bar.bar(0, number, bottom=bottom, color=colour, width=0.5)
        if number > 1000:
            label = f"{name}\n{number:,}\n{number / sum(parts.values()):.0%}"
            bar.text(0, bottom + number / 2, label, ha="center", va="center", color="white")
        else:
            bar.text(0, bottom + number + 500, f"{name}: {number}", ha="center", va="bottom")
        bottom += number
    bar.set(title="one transformer block", ylabel="parameters", xlim=(-0.45, 0.45), ylim=(0, bottom * 1.08), xticks=[])
    bar.yaxis.set_major_formatter("{x:,.0f}")
    save(picture, out)


if __name__ == "__main__":
    run(main, __doc__)
