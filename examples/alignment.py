"""An encoder and a decoder learn to turn written dates into ISO dates, and the cross-attention shows the alignment.

Sentences in, sentences out, as in Vaswani et al. 2017, figure 1, at the size of a date. Look at the map: the rows are
the characters that were written, the columns those that were read, and the bright cells are where the decoder looked
it up; nobody told it which belongs to which. Then the same dates are decoded greedily with and without the cache of
keys and values: the same characters, and the longer the output the more time that saves. At ten characters it does
not: what it saves is less than what it costs to keep.
"""

import time
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
from _common import PICTURES, figure, run, save, table, train
from torch import Tensor, nn

from mha_apps.attention import Cache, Decoder, Encoder, Padding, Sinusoidal, record_attention

MONTHS = [f"{date(2000, month, 1):%B}" for month in range(1, 13)]
FORMATS = ("{d} {m} {y}", "{m} {d}, {y}", "{d} {m:.3} {y}", "{d}. {n}. {y}", "{y}, {m} {d}")
LETTERS = sorted(set("".join(MONTHS)) | set("0123456789 ,.-"))
START, PAD = len(LETTERS), len(LETTERS) + 1
WRITTEN, READ, DIM, HEADS, STEPS = 10, 18, 64, 4, 500


def encode(text: str, length: int) -> list[int]:
    return [LETTERS.index(letter) for letter in text] + [PAD] * (length - len(text))


def dates(count: int) -> tuple[Tensor, Tensor, list[str]]:
    """Written dates (count, 18), ISO dates (count, 10), and the written ones as text."""
    year, month = torch.randint(1000, 3000, (count,)).tolist(), torch.randint(1, 13, (count,)).tolist()
    day, style = torch.randint(1, 29, (count,)).tolist(), torch.randint(len(FORMATS), (count,)).tolist()
    parts = list(zip(year, month, day, style, strict=True))
    texts = [FORMATS[s].format(d=d, m=MONTHS[m - 1], n=m, y=y) for y, m, d, s in parts]
    iso = [encode(f"{y:04}-{m:02}-{d:02}", WRITTEN) for y, m, d, _ in parts]
    return torch.tensor([encode(text, READ) for text in texts]), torch.tensor(iso), texts


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = nn.Embedding(PAD + 1, DIM), nn.Linear(DIM, len(LETTERS))
        self.position = Sinusoidal(DIM)
        self.encoder = Encoder(DIM, HEADS, 1, mlp_ratio=2)
        self.decoder = Decoder(DIM, HEADS, 2, mlp_ratio=2)

    def read(self, source: Tensor) -> tuple[Tensor, Padding]:
        real = Padding(source != PAD)
        return self.encoder(self.position(self.entry(source)), real), real

    def write(self, tokens: Tensor, memory: Tensor, real: Padding, cache: Cache | None = None) -> Tensor:
        start = 0 if cache is None else cache.length
        x = self.position(self.entry(tokens), start)
        return self.exit(self.decoder(x, memory, context_mask=real, cache=cache))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of each next character, given the right ones before it."""
        before = torch.cat([torch.full_like(target[:, :1], START), target[:, :-1]], dim=1)
        return self.write(before, *self.read(source))


@torch.no_grad()
def greedy(model: Translator, source: Tensor, *, cached: bool, length: int = WRITTEN) -> Tensor:
    """Characters (batch, length), the likeliest each time."""
    memory, real = model.read(source)
    tokens = torch.full((len(source), 1), START)
    cache = Cache() if cached else None
    for _ in range(length):
        # With the cache only the newest character goes in, without it all of them again.
        logits = model.write(tokens[:, -1:] if cached else tokens, memory, real, cache)
        tokens = torch.cat([tokens, logits[:, -1].argmax(dim=1, keepdim=True)], dim=1)
    return tokens[:, 1:]


def seconds(model: Translator, source: Tensor, cached: bool, length: int) -> float:
    times = []
    for _ in range(3):
        begun = time.process_time()
        greedy(model, source, cached=cached, length=length)
        times.append(time.process_time() - begun)
    return min(times)


def main(out: Path = PICTURES / "alignment.png", seed: int = 0) -> dict[str, float]:
    torch.manual_seed(seed)
    model = Translator()

    def loss() -> Tensor:
        source, target, _ = dates(32)
        return F.cross_entropy(model(source, target).transpose(1, 2), target)

    train(model, loss, STEPS, 3e-3)
    model.eval()
    source, target, texts = dates(500)
    with_cache, without = greedy(model, source, cached=True), greedy(model, source, cached=False)
    exact = float((with_cache == target).all(dim=1).float().mean())
    table(
        ["read", "written", "right"],
        [
            (text, "".join(LETTERS[i] for i in row), "yes" if torch.equal(row, truth) else "no")
            for text, row, truth in list(zip(texts, with_cache, target, strict=True))[:6]
        ],
    )
    speed = {}
    for length in (WRITTEN, 40, 160):
        slow, fast = (seconds(model, source[:8], cached, length) for cached in (False, True))
        speed[length] = slow / fast
        print(f"{length:>4} characters, batch 8: {1000 * slow:.0f} ms without the cache, {1000 * fast:.0f} ms with it")
    print()

    with torch.no_grad(), record_attention(model) as maps:
        model(source, target)
    cross = {name: weights for name, weights in maps.items() if "cross_attention" in name}
    weights = torch.stack([layer.mean(dim=1) for layer in cross.values()])  # (layer, batch, written, read)
    # The year stands in the text as four digits: does the row of each look at that digit?
    begins = torch.tensor([text.index(f"{y}") for text, y in zip(texts, years(target), strict=True)])
    aligned = [
        float((layer[:, :4].argmax(dim=2) == begins[:, None] + torch.arange(4)).float().mean()) for layer in weights
    ]
    best = int(torch.tensor(aligned).argmax())
    draw(weights[best], with_cache, texts, out)
    same = float((with_cache == without).all(dim=1).float().mean())
    print(
        f"{exact:.1%} of 500 new dates come out right in full; in layer {best} {aligned[best]:.0%} of the year's "
        f"digits look most at the very digit that they copy; decoding with the cache gives the same characters for "
        f"{same:.0%} of them, {speed[WRITTEN]:.1f} times as fast at {WRITTEN} characters and {speed[160]:.1f} times at "
        f"160."
    )
    return {
        "exact": exact, "aligned": aligned[best], "same": same,
        "speed_short": speed[WRITTEN], "speed_long": speed[160],
    }  # fmt: skip


def years(target: Tensor) -> list[str]:
    return ["".join(LETTERS[i] for i in row[:4]) for row in target]


def draw(weights: Tensor, written: Tensor, texts: list[str], out: Path) -> None:
    month_first = next(i for i, text in enumerate(texts) if text[0].isalpha())
    numbers = next(i for i, text in enumerate(texts) if "." in text)
    year_first = next(i for i, text in enumerate(texts) if text[:4].isdigit())
    chosen = (month_first, numbers, year_first)
    picture, axes = figure(1, 3, height=2.9)
    for ax, row in zip(axes, chosen, strict=True):
        text = texts[row]
        image = ax.imshow(weights[row][:, : len(text)], cmap="viridis", vmin=0, vmax=1, aspect="auto")
        ax.set_xticks(range(len(text)), [letter if letter != " " else "␣" for letter in text])
        ax.set_yticks(range(WRITTEN), [LETTERS[i] for i in written[row]])
        ax.set(xlabel="read", title=text)
    axes[0].set_ylabel("written")
    picture.colorbar(image, ax=axes, label="attention weight", fraction=0.03)
    save(picture, out)


if __name__ == "__main__":
    run(main, __doc__)
