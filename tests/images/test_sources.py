"""Image sources: every layout is read alike, odd images are used right or counted, and splits never overlap."""

import io
import json
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2
from PIL import Image

from mha_apps.errors import InputError
from mha_apps.forecast.sample import locate
from mha_apps.images import ImageSet, Unreadable, decode, load, stratified_split, with_classes
from mha_apps.images.recipe import ImageRecipe


def picture(seed=0, size=(12, 10), mode="RGB"):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def class_folders(root, classes=("cat", "dög toy"), count=10, size=(12, 10)):
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for index in range(count):
            picture(100 * number + index, size).save(root / name / f"image {index}.png")
    return root


def write_parquet(path, rows, labels, *, image="img", label="label", metadata=None):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    columns = {image: pa.array([{"bytes": data, "path": None} for data in rows])}
    if label is not None:
        columns[label] = pa.array(labels)
    table = pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    parquet.write_table(table, path)
    return path


# Splits


def test_digits_are_split_into_three_disjoint_stratified_parts():
    parts = [load("digits", split) for split in ("train", "validation", "test")]
    assert sum(len(part) for part in parts) == 1797
    assert parts[0].image_size == (8, 8)
    rows = torch.cat([part.images for part in parts]).flatten(1)
    assert len(rows.unique(dim=0)) == len(load("digits", "all").images.flatten(1).unique(dim=0))
    for part in parts:
        share = part.labels.bincount().float() / len(part)
        assert (share - 0.1).abs().max() < 0.02


def test_a_split_is_the_same_every_time():
    assert torch.equal(load("digits", "test").labels, load("digits", "test").labels)


def test_a_class_of_one_image_stays_in_training():
    kept, cut = stratified_split(np.array([0, 0, 0, 0, 1]), 0.5)
    assert kept.tolist() == sorted(set(range(5)) - set(cut.tolist()))
    assert 4 in kept
    assert len(cut) == 2


# Layouts


def test_a_folder_of_class_folders_is_cut_into_splits(tmp_path):
    root = class_folders(tmp_path / "my images")
    train, validation, test = (load(str(root), split) for split in ("train", "validation", "test"))
    assert train.classes == ("cat", "dög toy")
    assert (len(train), len(validation), len(test)) == (14, 2, 4)
    assert train.image_size == (10, 12)


def test_a_folder_with_splits_keeps_them(tmp_path):
    class_folders(tmp_path / "train")
    class_folders(tmp_path / "val", count=3)
    class_folders(tmp_path / "test", count=4)
    sizes = [len(load(str(tmp_path), split)) for split in ("train", "validation", "test")]
    assert sizes == [20, 6, 8]


def test_parquet_files_in_the_hubs_layout_give_their_splits_and_class_names(tmp_path):
    names = {"info": {"features": {"label": {"names": ["no", "yes"]}}}}
    pictures = [picture(number) for number in range(20)]
    rows = [encoded(image) for image in pictures]
    labels = [number % 2 for number in range(20)]
    write_parquet(tmp_path / "train-00000-of-00002.parquet", rows[:8], labels[:8], metadata=names)
    write_parquet(tmp_path / "train-00001-of-00002.parquet", rows[8:16], labels[8:16], metadata=names)
    write_parquet(tmp_path / "test-00000-of-00001.parquet", rows[16:], labels[16:], metadata=names)
    test = load(str(tmp_path), "test")
    assert test.classes == ("no", "yes")
    assert torch.equal(test.images[1], torch.from_numpy(np.asarray(pictures[17]).transpose(2, 0, 1).copy()))
    train, validation = load(str(tmp_path), "train"), load(str(tmp_path), "validation")
    assert (len(train), len(validation)) == (14, 2)
    alone = load(str(tmp_path / "test-00000-of-00001.parquet"), "test")
    assert torch.equal(alone.images, test.images)


def test_text_labels_number_the_classes_alike_in_every_split(tmp_path):
    rows = [encoded(picture(number)) for number in range(4)]
    write_parquet(tmp_path / "train-0.parquet", rows, ["bee", "ant", "bee", "cow"], image="image")
    write_parquet(tmp_path / "test-0.parquet", rows, ["cow", "cow", "bee", None], image="image")
    test = load(str(tmp_path), "test")
    assert test.classes == ("ant", "bee", "cow")
    assert test.labels.tolist() == [2, 2, 1]
    assert test.skipped == {"no label": 1}


@pytest.mark.parametrize("layout", ["keras", "medmnist", "plain"])
def test_npz_files_by_three_conventions(tmp_path, layout):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 9, 9), dtype=np.uint8)
    labels = np.arange(20) % 4
    names = {
        "keras": ("x_train", "y_train", "x_test", "y_test"),
        "medmnist": ("train_images", "train_labels", "test_images", "test_labels"),
        "plain": ("images", "labels"),
    }[layout]
    arrays = dict(zip(names, (pixels, labels[:, None] if layout == "medmnist" else labels) * 2, strict=False))
    np.savez(tmp_path / "data.npz", **arrays)
    test = load(str(tmp_path / "data.npz"), "test")
    assert test.channels == 1
    assert len(test) == (4 if layout == "plain" else 20)


def test_float_pixels_of_0_to_1_become_bytes(tmp_path):
    pixels = np.linspace(0, 1, 6 * 4 * 4 * 3).reshape(6, 4, 4, 3)
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(6) % 2)
    everything = load(str(tmp_path / "data.npz"), "all")
    expected = np.round(pixels * 255).astype(np.uint8).transpose(0, 3, 1, 2)
    assert torch.equal(everything.images, torch.from_numpy(expected))


# Odd images


def test_kinds_of_images_come_out_as_they_look_on_a_screen():
    colour = picture()
    expected = np.asarray(colour).transpose(2, 0, 1)
    assert np.array_equal(decode(encoded(colour)), expected)
    assert np.array_equal(decode(encoded(colour, "BMP")), expected)
    grey = colour.convert("L")
    assert np.array_equal(decode(encoded(grey)), np.stack([np.asarray(grey)] * 3))
    assert np.array_equal(decode(encoded(colour), channels=1)[0], np.asarray(grey))
    palette = colour.quantize(16)
    assert np.array_equal(decode(encoded(palette)), np.asarray(palette.convert("RGB")).transpose(2, 0, 1))
    cmyk = decode(encoded(colour.convert("CMYK"), "JPEG", quality=100))
    assert np.abs(cmyk.astype(int) - expected).mean() < 12  # JPEG's own loss, on noise


def test_sixteen_bits_are_scaled_not_clipped():
    values = np.linspace(0, 65535, 120).reshape(10, 12).astype(np.uint16)
    decoded = decode(encoded(Image.fromarray(values)), channels=1)
    assert np.array_equal(decoded[0], np.round(values / 257).astype(np.uint8))


def test_transparency_is_laid_over_white():
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert (decode(encoded(clear)) == 255).all()
    half = Image.new("RGBA", (4, 4), (0, 0, 0, 128))
    assert np.abs(decode(encoded(half)).astype(int) - 127).max() <= 1


def test_an_image_that_exif_turns_is_turned():
    image = picture(size=(12, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # the top of the scene is on the right
    turned = decode(encoded(image, exif=exif.tobytes()))
    assert np.array_equal(turned, np.asarray(image.rotate(-90, expand=True)).transpose(2, 0, 1))


def test_another_size_is_scaled_to_cover_and_cropped_at_the_centre():
    wide = np.zeros((20, 60, 3), dtype=np.uint8)
    wide[:, 20:40] = 255
    square = decode(encoded(Image.fromarray(wide)), size=(10, 10))
    assert square.shape == (3, 10, 10)
    assert (square[:, :, 1:-1] == 255).all()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"just some text", "not an image"),
        (encoded(picture(size=(60, 60)))[:2000], "truncated or damaged"),
        (encoded(picture(size=(60, 60)), "JPEG")[:1500], "truncated or damaged"),
        (encoded(Image.new("1", (20_000, 20_000))), "larger than 50 megapixels"),
    ],
)
def test_what_cannot_be_used_says_why(data, reason):
    with pytest.raises(Unreadable, match=reason):
        decode(data, size=(32, 32))


def test_a_folder_of_odd_images_is_used_or_counted_by_reason(tmp_path):
    root = class_folders(tmp_path, count=30, size=(40, 30))
    odd = root / "cat"
    (odd / "text.png").write_text("not pixels")
    (odd / "empty file.jpg").touch()
    (odd / "cut.png").write_bytes(encoded(picture(size=(99, 80)))[:5000])
    (odd / "notes.txt").write_text("a note")
    picture(1, (70, 20)).convert("L").save(odd / "grey.tif")
    everything = load(str(root), "all")
    assert everything.channels == 3
    assert everything.image_size == (30, 40)
    assert len(everything) == 61
    assert everything.skipped == {
        "not an image file name": 1,
        "not an image": 1,
        "empty file": 1,
        "truncated or damaged": 1,
    }
    assert "1 (empty file)" in everything.describe()


def test_images_of_many_sizes_become_squares_of_the_median_side(tmp_path):
    class_folders(tmp_path, count=0)
    for number in range(20):
        picture(number, (30 + 5 * number, 300)).save(tmp_path / ("cat", "dög toy")[number % 2] / f"{number}.png")
    assert load(str(tmp_path), "all").image_size == (80, 80)  # the median of 30, 35, ..., 125 is 77.5
    assert load(str(tmp_path), "all", image_size=32).image_size == (32, 32)


def test_a_set_too_large_for_memory_is_mapped_to_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("mha_apps.images.source.IN_MEMORY", 1000)
    root = class_folders(tmp_path)
    mapped = load(str(root), "train")
    monkeypatch.undo()
    assert torch.equal(mapped.images, load(str(root), "train").images)


# Messages


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "nowhere: no such file or folder; --data takes"),
        ("notes.txt", "not a kind of file that holds labelled images"),
        ("broken.parquet", "not a readable parquet file"),
        ("unlabelled.parquet", r"unlabelled.parquet: lacks a label column .* it has img"),
        ("other.npz", "holds weights; name the arrays"),
        ("bare", "0 class folders found"),
        ("train-0.parquet", "has no test split, only train"),
    ],
)
def test_a_source_that_cannot_be_used_is_named_with_the_remedy(tmp_path, name, words):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "broken.parquet").write_text("x")
    write_parquet(tmp_path / "unlabelled.parquet", [encoded(picture())], None, label=None)
    write_parquet(tmp_path / "train-0.parquet", [encoded(picture())] * 4, [0, 1, 0, 1])
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    (tmp_path / "bare").mkdir()
    with pytest.raises(InputError, match=words) as error:
        load(str(tmp_path / name), "test")
    assert "\n" not in str(error.value)


def test_labels_are_matched_to_a_model_by_name():
    images = ImageSet(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 1]), ("b", "c"))
    assert with_classes(images, ["a", "b", "c"]).labels.tolist() == [1, 2, 2]
    with pytest.raises(InputError, match="class 'c' is unknown to the model"):
        with_classes(images, ["a", "b"])


# Damaged and odd sources: one line that names the file and the place


def pixels(count=4, channels=3):
    return np.random.default_rng(0).integers(0, 256, (count, channels, 8, 8), dtype=np.uint8)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[0], [1], [0], [1]], r"one.parquet: column 'label' holds list"),
        ([{"a": 0}] * 4, r"one.parquet: column 'label' holds struct"),
        ([0, 1, 2**40, 1], r"one.parquet: column 'label', row 2: label 1099511627776 would make"),
        ([0, 1, 2**63, 1], r"one.parquet: column 'label', row 2: 9223372036854775808 is no label"),
    ],
)
def test_labels_that_are_no_class_are_refused(tmp_path, labels, message):
    path = tmp_path / "one.parquet"
    if 2**63 in labels:
        labels = np.array(labels, dtype=np.uint64)
    write_parquet(path, [encoded(picture())] * 4, labels)
    with pytest.raises(InputError, match=message):
        load(str(path), "all")


def test_the_file_that_lacks_a_column_is_the_one_that_is_named(tmp_path):
    rows = [encoded(picture())] * 4
    write_parquet(tmp_path / "train-0.parquet", rows, [0, 1, 0, 1])
    write_parquet(tmp_path / "train-1.parquet", rows, None, label=None)
    with pytest.raises(InputError, match=r"train-1.parquet: lacks the label column of train-0.parquet \(label\)"):
        load(str(tmp_path), "train")


def test_damaged_pages_of_a_parquet_file_are_named(tmp_path):
    path = write_parquet(tmp_path / "one.parquet", [encoded(picture(n)) for n in range(20)], [0, 1] * 10)
    data = bytearray(path.read_bytes())
    data[20:400] = bytes(380)  # the images come first, the footer last
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"one.parquet: column 'img' cannot be read"):
        load(str(path), "all")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.full((4, 8, 8), "a"), [0, 1, 0, 1], r"array 'images' holds <U1"),
        (np.ones((4, 8, 8), dtype=complex), [0, 1, 0, 1], r"array 'images' holds complex128"),
        (pixels(), [0, 1, 0, 2**40], r"column 'labels', row 3: label 1099511627776 would make"),
        (np.zeros((4, 0, 8), dtype=np.uint8), [0, 1, 0, 1], r"has shape \(4, 1, 0, 8\)"),
        (pixels(), 0, r"'labels' \(\); images are"),
    ],
)
def test_arrays_that_are_no_labelled_images_are_refused(tmp_path, images, labels, message):
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    with pytest.raises(InputError, match=message):
        load(str(tmp_path / "a.npz"), "all")


def test_an_npz_whose_bytes_changed_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, images=pixels(), labels=[0, 1, 0, 1])
    with zipfile.ZipFile(path) as file:
        begin = file.getinfo("images.npy").header_offset + 300
    data = bytearray(path.read_bytes())
    data[begin] ^= 255
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a.npz: cannot be read \(Bad CRC-32"):
        load(str(path), "all")


@pytest.mark.parametrize("labels", [[0], [[0]]])
def test_a_single_image_is_read_as_one(tmp_path, labels):
    np.savez(tmp_path / "a.npz", images=pixels(1), labels=labels, classes=np.array("cat"))
    images = load(str(tmp_path / "a.npz"), "all")
    assert (len(images), images.classes) == (1, ("cat",))


@pytest.mark.parametrize("size", [1_000_000, 0])
def test_sizes_that_no_memory_holds_are_refused(size):
    with pytest.raises(InputError, match=rf"--image-size {size}: must be from 1 to"):
        load("digits", "train", image_size=size)


def test_a_set_that_no_disk_holds_is_refused(monkeypatch):
    monkeypatch.setattr("mha_apps.images.source.IN_MEMORY", 1000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**20))
    with pytest.raises(InputError, match=r"images of 64x64 need .* GiB, but .* free; set a smaller --image-size"):
        load("digits", "train", image_size=64)


def test_arrays_are_resized_alike_in_pieces_and_at_once():
    resize = torchvision.transforms.v2.functional.resize
    small = load("digits", "all").images
    expected = resize(small, [160, 160], torchvision.transforms.v2.InterpolationMode.BICUBIC, antialias=True)
    assert torch.equal(load("digits", "all", image_size=160).images, expected)


def test_image_files_do_not_fill_other_numbers_of_channels(tmp_path):
    root = class_folders(tmp_path)
    with pytest.raises(InputError, match=r"takes images of 7 channels, image files have 1 or 3"):
        load(str(root), "train", channels=7)


def test_data_spelled_another_way_are_the_same_data(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    spelled = ("photos", "photos/../photos", str(tmp_path / "photos"))
    assert {ImageRecipe(data=each).located().data for each in spelled} == {str(tmp_path / "photos")}


def test_data_behind_a_link_are_recorded_by_the_name_of_the_link(tmp_path):
    (tmp_path / "blob").write_bytes(b"")
    link = tmp_path / "train.parquet"
    link.symlink_to(tmp_path / "blob")
    assert ImageRecipe(data=str(link)).located().data == str(link)
    assert locate(link) == str(link)
    assert locate(tmp_path / "photos" / ".." / "train.parquet") == str(link)
