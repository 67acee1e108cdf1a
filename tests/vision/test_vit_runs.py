"""From a recipe to a run folder, and from there to numbers, predictions and pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mha_apps.errors import InputError
from mha_apps.images import load
from mha_apps.vision import (
    ViT,
    VitRecipe,
    evaluate,
    explain,
    explain_files,
    export,
    load_model,
    plot_explanation,
    predict,
    resize,
    train,
)

TINY = {"data": "digits", "dim": 32, "depth": 1, "heads": 2, "device": "cpu", "precision": "fp32"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(VitRecipe(epochs=8, batch_size=64, mixup=0.0, **TINY), out=tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def digit_files(tmp_path):
    images = load("digits", "test").images[:6, 0].numpy()
    for number, pixels in enumerate(images):
        Image.fromarray(pixels).save(tmp_path / f"digit {number}.png")
    return tmp_path


def test_a_small_vit_learns_the_digits(run):
    result = evaluate(run)
    assert result["images"] == 359
    assert result["top1"] > 0.85  # an untrained one is right in a tenth
    assert (run.plots_dir / "confusion-test.png").is_file()
    assert "Attention" in (run.path / "report.html").read_text()
    json.dumps(result)


def test_other_images_leave_the_confusion_matrix_of_the_run_as_it_is(run, tmp_path):
    kept = evaluate(run)["plot"]
    before = Path(kept).read_bytes()
    images = load("digits", "test")
    for number in range(20):
        folder = tmp_path / "mine" / images.classes[images.labels[number]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.images[number, 0].numpy()).save(folder / f"{number}.png")
    other = evaluate(run, str(tmp_path / "mine"), split="all")
    assert Path(other["plot"]) == run.plots_dir / "mine" / "confusion-all.png"
    assert Path(kept).read_bytes() == before


def test_a_run_keeps_classes_and_normalisation_with_the_model(run):
    model = load_model(run)
    assert model.classes == tuple("0123456789")
    assert (model.mean, model.std) == load("digits", "train").statistics()


def test_the_same_seed_gives_the_same_weights(tmp_path):
    recipe = VitRecipe(steps=6, batch_size=64, policy="trivial", cutmix=1.0, erasing=0.5, dropout=0.1, **TINY)
    first, second = (load_model(train(recipe, out=tmp_path / name)) for name in "ab")
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_bad_input_leaves_nothing_behind(tmp_path):
    for change, words in (
        ({"data": str(tmp_path / "none")}, "no such file or folder"),
        ({"preset": "digitz"}, "did you mean digits"),
        ({"heads": 5}, "heads 5"),
        ({"crop": 8}, "--crop 8"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0"),
        ({"pretrained": "x", "dim": 8}, "--depth: --pretrained x brings its own"),
    ):
        with pytest.raises(InputError, match=words):
            train(VitRecipe(**TINY | change), out=tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_evaluating_other_data_maps_classes_by_name(run, tmp_path):
    images = load("digits", "all")
    for label in (7, 2):
        (tmp_path / str(label)).mkdir()
        for number, pixels in enumerate(images.images[images.labels == label][:20, 0].numpy()):
            Image.fromarray(pixels).save(tmp_path / str(label) / f"{number}.png")
    result = evaluate(run, str(tmp_path), split="all")
    assert result["images"] == 40
    assert result["top1"] > 0.8
    assert result["per_class"]["7"]["support"] == 20


def test_flip_averaging_is_off_unless_asked_for_and_then_said(run):
    plain, averaged = evaluate(run), evaluate(run, flip_average=True)
    assert not plain["flip_average"]
    assert averaged["flip_average"]
    assert plain["loss"] != averaged["loss"]


def test_files_folders_and_globs_are_predicted_and_broken_images_say_why(run, digit_files):
    broken = digit_files / "broken.png"
    broken.write_text("no image")
    table = predict(run, [digit_files, str(digit_files / "digit [01].png"), broken], top_k=2)
    assert len(table) == 7 + 2 + 1
    assert list(table.columns) == ["file", "class", "probability", "class_2", "probability_2", "reason"]
    failed = table[table["file"] == str(broken)]
    assert failed["reason"].tolist() == ["not an image"] * 2
    assert failed["class"].isna().all()
    good = table[table["reason"] == ""]
    assert (good["probability"] >= good["probability_2"]).all()


def test_a_prediction_does_not_depend_on_the_batch(run, digit_files):
    together, alone = predict(run, digit_files), predict(run, digit_files, batch_size=1)
    assert together["class"].tolist() == alone["class"].tolist()
    np.testing.assert_allclose(together["probability"], alone["probability"], atol=1e-5)


@pytest.mark.parametrize(("inputs", "words"), [("nothing*.png", "no such file"), ([], "no images")])
def test_inputs_that_name_no_image_are_refused(run, inputs, words):
    with pytest.raises(InputError, match=words):
        predict(run, inputs)


@pytest.mark.parametrize("pool", ["mean", "class", "attention"])
def test_attention_maps_lie_over_the_image_and_sum_to_one(tmp_path, pool):
    trained = train(VitRecipe(steps=2, pool=pool, registers=1, **TINY), out=tmp_path / "run")
    images = load("digits", "test")
    explanation = explain(trained, images.images[:3])
    assert explanation.rollout.shape == (3, 4, 4)
    assert explanation.heads.shape == (3, 2, 4, 4)
    torch.testing.assert_close(explanation.rollout.sum(dim=(1, 2)), torch.ones(3))
    figure = plot_explanation(explanation, images.classes, images.labels[:3], heads=True)
    assert len(figure.axes) == 3 * 4


def test_a_windowed_model_with_merged_patches_trains_explains_and_exports(tmp_path):
    model = ViT(image_size=16, patch_size=2, channels=1, dim=16, depth=[2, 1], heads=2, window=4, position="relative")
    picture = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    explanation = explain(model, picture)
    assert explanation.rollout.shape == (3, 8, 8)
    assert explanation.heads.shape == (3, 4, 4, 4)
    torch.testing.assert_close(explanation.rollout.sum(dim=(1, 2)), torch.ones(3))
    assert len(plot_explanation(explanation, model.classes, heads=True).axes) == 3 * 6

    trained = train(VitRecipe(steps=2, **TINY | {"window": 2}), out=tmp_path / "run")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    export(trained, tmp_path / "out")  # which compares with onnxruntime


def test_a_run_starts_from_the_weights_of_another(run, tmp_path):
    recipe = VitRecipe(data="digits", pretrained=str(run.path), steps=1, learning_rate=1e-9, batch_size=64)
    tuned = train(recipe, out=tmp_path / "tuned")
    torch.testing.assert_close(
        load_model(tuned).encoder.blocks[0].feed_forward.hidden.weight,
        load_model(run).encoder.blocks[0].feed_forward.hidden.weight,
        atol=1e-6, rtol=0,
    )  # fmt: skip


def test_a_resized_model_explains_and_predicts_at_its_new_size(run):
    model = resize(load_model(run), (12, 16))
    explanation = explain(model, torch.zeros(1, 1, 12, 16, dtype=torch.uint8))
    assert explanation.rollout.shape == (1, 6, 8)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(InputError, match="holds no run"):
        evaluate(tmp_path)


def test_explaining_files_draws_them_and_judges_the_heads(run, digit_files):
    (digit_files / "broken.png").write_text("no image")
    result = explain_files(run, digit_files, out=digit_files / "maps.jpeg.png")
    assert len(result["images"]) == 6
    assert [row["reason"] for row in result["skipped"]] == ["not an image"]
    with Image.open(result["plot"]) as drawn:
        assert min(drawn.size) > 100
    assert set(result["heads"]) == {"encoder.blocks.0.attention"}
    json.dumps(result)


def test_an_exported_run_is_loaded_by_others_and_its_card_names_data_and_limits(run, tmp_path):
    result = export(run, tmp_path / "out", onnx=False)
    assert result["files"] == ["README.md", "config.json", "model.safetensors"]
    again = ViT.from_pretrained(tmp_path / "out").eval()
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(again(images), load_model(run)(images), rtol=0, atol=0)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "`digits`" in card
    assert "## Limits" in card


def test_onnx_gives_the_same_probabilities_for_any_batch(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    export(run, tmp_path / "out")
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    images = load("digits", "test").images[:7]
    (probabilities,) = session.run(None, {"pixels": images.float().numpy()})
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    expected = explain(run, images).probabilities
    np.testing.assert_allclose(probabilities, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp_ratio": 1e-9}, r"mlp_ratio 1e-09 of dim 32 leaves 3.2e-08 hidden channels; .* --mlp-ratio"),
        ({"heads": 3, "dim": 8}, r"dim 8 is not a multiple of heads 3; set .* --dim, --heads"),
        ({"image_size": 1_000_000}, r"--image-size 1000000"),
        ({"stem": "conv", "patch_size": 8, "batch_size": 1}, r"1 image of 8x8 at a time .* larger --batch-size"),
    ],
)
def test_sizes_that_make_no_model_are_refused_before_anything_is_written(changes, message, tmp_path):
    with pytest.raises(InputError, match=message):
        train(VitRecipe(**TINY | changes), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("channels", [2, 7])
def test_images_of_any_number_of_channels_train_and_are_drawn(tmp_path, channels):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (40, channels, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(40) % 2)
    settings = TINY | {"data": str(tmp_path / "a.npz"), "steps": 2, "batch_size": 8}
    run = train(VitRecipe(**settings), out=tmp_path / "run")
    assert (run.plots_dir / "attention.png").is_file()
    with pytest.raises(InputError, match=r"--policy trivial: is for images of 1 or 3 channels"):
        train(VitRecipe(**settings | {"policy": "trivial"}), out=tmp_path / "other")


def test_a_picture_of_another_kind_is_refused(run, digit_files):
    with pytest.raises(InputError, match=r"does not end in .png; name the picture to write"):
        explain_files(run, digit_files, out=digit_files / "where.jpg")
    with pytest.raises(InputError, match=r"is one of the images and would be replaced"):
        explain_files(run, digit_files, out=digit_files / "digit 0.png")


def test_a_run_is_not_resumed_with_another_architecture_of_the_same_shapes(tmp_path):
    shaped = TINY | {"preset": "digits", "window": 2}
    run = train(VitRecipe(steps=2, **shaped), out=tmp_path / "run")
    with pytest.raises(InputError, match="window 2, not 3"):
        train(VitRecipe(steps=4, **shaped | {"window": 3}), resume=run.path)
    with pytest.raises(InputError, match="activation"):
        train(VitRecipe(steps=4, activation="relu", **shaped), resume=run.path)
    assert train(VitRecipe(steps=4, **shaped), resume=run.path).summary()["steps"] == 4


def test_a_run_finds_its_data_from_any_folder(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / "here" / "images" / name).mkdir(parents=True)
        for number in range(12):
            picture = np.full((8, 8), 200 * (name == "b") + number, dtype=np.uint8)
            Image.fromarray(picture).save(tmp_path / "here" / "images" / name / f"{number}.png")
    monkeypatch.chdir(tmp_path / "here")
    run = train(VitRecipe(steps=2, **TINY | {"data": "images"}), out=tmp_path / "here" / "run")
    monkeypatch.chdir(tmp_path)
    assert evaluate("here/run")["images"] > 0
    assert run.recipe(VitRecipe).data == str(tmp_path / "here" / "images")


@pytest.mark.parametrize("batch_size", [0, -5])
def test_a_batch_of_nothing_is_refused(run, digit_files, batch_size):
    with pytest.raises(InputError, match="--batch-size"):
        predict(run, digit_files, batch_size=batch_size)
    with pytest.raises(InputError, match="--batch-size"):
        evaluate(run, batch_size=batch_size)


def test_no_picture_at_all_is_refused(run, digit_files):
    with pytest.raises(InputError, match="--limit 0"):
        explain_files(run, digit_files, limit=0)
