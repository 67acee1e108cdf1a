"""A folder of two hundred odd images goes through training and prediction, each oddity counted, in bounded memory."""

import json
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from PIL import Image

# Peak memory of the whole process, in MiB, goes to standard error after the command.
MEASURED = """
import resource, sys
from mha_apps.cli import main
try:
    main(sys.argv[1:])
finally:
    print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


def run(*arguments):
    done = subprocess.run([sys.executable, "-c", MEASURED, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout), int(done.stderr.rsplit("PEAK", 1)[1])


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """200 files in two class folders, and how many cannot be used, by reason."""
    root = tmp_path_factory.mktemp("odd") / "фото und ñandú"
    random = np.random.default_rng(0)

    def picture(width, height):
        return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))

    huge = tmp_path_factory.mktemp("huge") / "huge.png"
    Image.new("1", (20_000, 20_000)).save(huge, compress_level=1)
    for name in ("día soleado", "雨 天"):
        folder = root / "train" / name
        folder.mkdir(parents=True)
        for number in range(80):
            picture(*random.integers(8, 90, 2)).save(folder / f"picture {number} — ü.jpg", quality=95)
        picture(40, 30).convert("L").save(folder / "grey.png")
        picture(40, 30).convert("1").save(folder / "black and white.png")
        picture(40, 30).convert("RGBA").save(folder / "with alpha.png")
        picture(40, 30).convert("P").save(folder / "palette.gif")
        picture(40, 30).convert("CMYK").save(folder / "print.jpg")
        Image.fromarray(random.integers(0, 65536, (30, 40), dtype=np.uint16)).save(folder / "sixteen bits.png")
        turned = Image.Exif()
        turned[0x0112] = 6
        picture(40, 30).save(folder / "turned by exif.jpg", exif=turned)
        picture(40, 30).save(folder / "other kind.webp")
        picture(1, 1).save(folder / "one pixel.png")
        picture(900, 3).save(folder / "a line.png")
        picture(40, 30).save(folder / "UPPER CASE.PNG")
        picture(40, 30).save(folder / "really a png.jpg", "PNG")
        (folder / "text.png").write_text("not pixels")
        (folder / "empty file.jpg").touch()
        picture(90, 90).save(folder / "cut.jpg", quality=100)
        (folder / "cut.jpg").write_bytes((folder / "cut.jpg").read_bytes()[:2000])
        (folder / "huge.png").write_bytes(huge.read_bytes())
        Image.new("1", (20_000, 20_000)).save(folder / "huge.tif", compression="group4")
        (folder / "notes.txt").write_text("a note")
        picture(40, 30).save(folder / "no suffix", "PNG")
        (folder / "dangling.png").symlink_to(folder / "nowhere.png")
    assert len(list(root.rglob("*.*"))) + 2 == 200
    return root, {
        "not an image": 2,
        "empty file": 2,
        "truncated or damaged": 2,
        "larger than 50 megapixels": 4,
        "missing file": 2,
    }


def test_two_hundred_odd_images_train_and_predict_with_each_oddity_counted(odd, tmp_path):
    root, unusable = odd
    small = ("--dim", "16", "--depth", "1", "--heads", "2", "--preset", "vit-9-192", "--image-size", "32")
    summary, peak = run("vit", "train", "--data", root, "--steps", "3", *small, "--out", tmp_path / "run", "--json")
    # Without images it is about 950; the four pictures of 20,000 x 20,000 in colour would add 1,200 each.
    assert peak < 2100
    counted: Counter[str] = Counter()
    for split in ("train", "validation"):
        for count, reason in re.findall(r"([\d,]+) \(([^)]+)\)", summary[split]):
            counted[reason] += int(count)
    assert counted == unusable | {"not an image file name": 4}
    used = sum(int(summary[split].split(" images")[0]) for split in ("train", "validation"))
    assert used + counted.total() == 200

    answer, peak = run("vit", "predict", tmp_path / "run", root, "--json")
    assert peak < 2100
    # Files that are not named as images are no part of a folder's images; each of the others has its row.
    assert Counter(row["reason"] for row in answer["rows"]) == unusable | {"": used}
    assert all(row["class"] in ("día soleado", "雨 天") for row in answer["rows"] if not row["reason"])
