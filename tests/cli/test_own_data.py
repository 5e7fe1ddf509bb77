"""`ganherd train pictures` and `data inspect`: folders as people have them, with images of many sizes and kinds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from sample_files import labelled, write_tar

from ganherd import recommend
from ganherd.data.readers.survey import holds_image_files, survey
from ganherd.recipe import recipe_file

TINY = ["--set", "nets.generator.width=4", "--set", "nets.discriminator.width=4",
        "--set", "engine={name: loop, threads: 1, chunk: 1}", "--budget", "2steps", "--quiet"]  # fmt: skip


def noise(*shape: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8))


@pytest.fixture
def pictures(cli) -> Path:
    """Two classes of images of different sizes: colour, grey, transparent, 16-bit, CMYK, a copy, and three that are none."""
    for name in ("cat", "dog"):
        Path("pictures", name).mkdir(parents=True)
    for k in range(20):
        noise(40 + k, 50, 3).save(f"pictures/cat/{k:02d}.png")
    noise(30, 41).save("pictures/dog/grey.png")
    noise(30, 42, 4).save("pictures/dog/transparent.png")
    Image.fromarray(np.full((33, 33), 40_000, np.uint16)).save("pictures/dog/sixteen.png")
    noise(35, 44, 3).convert("CMYK").save("pictures/dog/cmyk.jpg")
    noise(59, 50, 3).save("pictures/dog/copy.png")
    Path("pictures/dog/broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    Path("pictures/dog/notes.txt").write_text("no image")
    cut = Path("pictures/cat/00.png").read_bytes()
    Path("pictures/dog/cut.png").write_bytes(cut[: len(cut) // 2])  # its header is whole
    return Path("pictures")


def test_a_survey_describes_files_without_decoding_them(pictures: Path) -> None:
    files = survey(str(pictures))
    assert files.classes == {"cat": 20, "dog": 6} and files.images == 26
    assert files.kinds == {"colour": 24, "grey": 2, "with transparency": 1, "16-bit": 1, "CMYK": 1}
    assert files.is_varied and files.side == 47
    assert {file: why for file, why in files.unreadable} == {
        "dog/broken.png": "no known image format",
        "dog/notes.txt": "no known image format",
    }
    assert files.facts()["width"] == [33, 50] and files.facts()["height"] == [30, 59]


def test_only_trees_of_images_are_surveyed(pictures: Path) -> None:
    assert holds_image_files(str(pictures))
    assert not holds_image_files(str(pictures / "cat/00.png"))
    Path("idx").mkdir()
    Path("idx/train-images-idx3-ubyte").write_bytes(b"")
    assert not holds_image_files("idx")


def test_inspect_describes_images_of_any_size_and_kind(cli, pictures: Path) -> None:
    answer = cli("data", "inspect", pictures)
    assert answer.code == 0
    for line in (
        "files: 26 images (24 colour, 2 grey, 1 CMYK, 1 16-bit, 1 with transparency), 24 sizes, 33 to 50 wide and 30 to 59 high",
        "half of them have a shorter side of at least 47 pixels",
        "pictures: 25 images of 3×32×32",
        "note: 25 images cropped to the centre square and resized to 32 × 32",
        "cannot be used as images: dog/broken.png",
        "dog/cut.png",
        "note: 1 image of 25 are exact copies of others",
        "with data.holdout 0.1:",  # of the recipe that would be trained, not the default
        "note: classes are unequal: cat has 18 images to train on, dog has 4",
        "`ganherd train pictures` would train this:",
        "recipe   folder-perclass-small (no GPU here",
    ):
        assert line in answer.out
    facts = json.loads(cli("data", "inspect", pictures, "--json").out)
    assert facts["files"]["side"] == 47 and facts["would_train"]["recipe"] == "folder-perclass-small"
    assert Path("pictures-sheet.png").is_file()


@pytest.mark.further
def test_inspect_says_what_train_would_do_with_a_file(cli) -> None:
    Path("t.csv").write_text("a,b,c,class\n" + "".join(f"{i},{i * i},{i % 7},{'xy'[i % 2]}\n" for i in range(40)))
    assert "`ganherd train t.csv` would train this:\nrecipe   wine-wcgan" in cli("data", "inspect", "t.csv").out
    assert json.loads(cli("data", "inspect", "t.csv", "--json").out)["would_train"]["recipe"] == "wine-wcgan"
    assert "would train" not in cli("data", "inspect", "wine").out  # a name of `ganherd data list`, not a file


def test_inspect_describes_what_train_would_refuse(cli, pictures: Path) -> None:
    Path("pictures/empty").mkdir()
    answer = cli("data", "inspect", pictures)
    assert answer.code == 0 and "files: 26 images" in answer.out
    assert "`ganherd train` would refuse this: the class folder pictures/empty is empty" in answer.out
    facts = json.loads(cli("data", "inspect", pictures, "--json").out)
    assert facts["files"]["classes"] == {"cat": 20, "dog": 6, "empty": 0} and "is empty" in facts["refused"]
    assert "is empty; add images or remove the folder" in cli("train", pictures, "--quiet").sentence


def test_large_images_of_one_size_are_inspected_at_the_size_of_training(cli) -> None:
    Path("photos").mkdir()
    for k in range(4):
        noise(300, 300, 3).rotate(90 * k).save(f"photos/{k}.png")
    answer = cli("data", "inspect", "photos")
    assert "all 300 × 300 pixels" in answer.out and "photos: 4 images of 3×32×32" in answer.out
    assert "note: images of 300 pixels become 32 × 32" in answer.out and "more takes a GPU" in answer.out


def test_a_folder_of_pictures_is_trained_at_once(cli, pictures: Path, brief) -> None:
    assert cli("train", pictures, *TINY).code == 0
    run = Path("runs/00001-pictures")
    recipe, info = yaml.safe_load((run / "recipe.yaml").read_text()), json.loads((run / "run.json").read_text())
    assert (info["recipe"], info["state"], info["members"]) == ("folder-perclass-small", "finished", 2)
    assert recipe["data"]["source"] == str(pictures.absolute()) and recipe["data"]["size"] == 32
    assert recipe["train"]["budget"] == "2steps" and "data.source=pictures" in info["changes"]


def test_what_was_chosen_is_reported_before_training(cli, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ganherd.training.setup.dry_run.describe", lambda *given: pytest.skip.Exception)
    monkeypatch.setattr("ganherd.training.setup.dry_run.measured", lambda *given: "measured")
    answer = cli("train", pictures, "--dry-run", "--set", "data.size=48", "--budget", "3m")
    assert answer.err.splitlines()[:4] == [
        "recipe   folder-perclass-small (no GPU here: a small Wasserstein GAN for each class, on small images)",
        "images   cropped to the centre square and resized to 48 × 48 pixels",
        "length   3m; --budget sets another",
        "same as  ganherd train folder-perclass-small --set data.source=pictures --set data.size=48 --set train.budget=3m",
    ]


@pytest.mark.parametrize("name", ["mine.npz", "mine.npy"])
def test_a_file_of_images_is_trained_at_once(cli, brief, name: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    np.save(name, x) if name.endswith("npy") else np.savez(name, x=x, y=np.repeat([0, 1], 20))
    assert cli("train", name, *TINY).code == 0
    info = json.loads(Path("runs/00001-mine/run.json").read_text())
    assert (info["recipe"], info["members"]) == ("digits-wcgan", 2 if name.endswith("npz") else 1)


def test_a_recipe_can_be_named_for_own_data(cli, pictures: Path, brief) -> None:
    assert cli("train", pictures, "--recipe", "digits-nonsat", *TINY).code == 0
    run = Path("runs/00001-pictures")
    assert json.loads((run / "run.json").read_text())["recipe"] == "digits-nonsat"
    data = yaml.safe_load((run / "recipe.yaml").read_text())["data"]
    assert (data["size"], data["bad_images"]) == (47, "skip")  # half of the images have at least 47 pixels
    assert "leave one of them out" in cli("train", "digits-wcgan", "--recipe", "digits-nonsat").sentence
    assert "--resume uses the data of the run" in cli("train", pictures, "--resume", run).sentence


def test_a_name_that_is_a_folder_and_a_recipe_is_refused_with_both_spellings(cli, pictures: Path, brief) -> None:
    pictures.rename("digits-wcgan")
    told = cli("train", "digits-wcgan").sentence
    assert "`ganherd train --recipe digits-wcgan` for the recipe" in told
    assert "`ganherd train ./digits-wcgan` for the folder" in told
    assert cli("train", "./digits-wcgan", *TINY).code == 0
    assert json.loads(Path("runs/00001-digits-wcgan/run.json").read_text())["recipe"] == "folder-perclass-small"
    assert cli("train", "--recipe", "digits-wcgan", *TINY).code == 0
    assert json.loads(Path("runs/00002-digits-wcgan/run.json").read_text())["recipe"] == "digits-wcgan"


def test_folders_that_hold_no_data_are_refused(cli, run: Path) -> None:
    Path("empty").mkdir()
    assert (
        "empty holds no images that can be read: name a folder of images (PNG, JPEG" in cli("train", "empty").sentence
    )
    Path("texts").mkdir()
    Path("texts/a.txt").write_text("no image")
    assert "texts holds no images that can be read (a.txt (no known image format)):" in cli("train", "texts").sentence
    assert "holds runs, not images" in cli("train", run.parent).sentence
    assert f"did you mean {run / 'recipe.yaml'}?" in cli("train", run).sentence


def test_a_folder_that_contains_the_current_one_is_refused(
    cli, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs would become part of the data."""
    monkeypatch.chdir(pictures)
    for source in (".", "..", str(Path.cwd())):
        assert "contains the current folder, so runs would be written into the data" in cli("train", source).sentence
    assert not Path("runs").exists()


def test_the_home_of_an_unknown_user_is_a_sentence(cli) -> None:
    sentence = cli("train", "--set", "data.source=~no-such-user/x.npz").sentence
    assert "~no-such-user/x.npz" in sentence


def test_images_of_other_splits_do_not_count_as_training_images(cli) -> None:
    for folder, number in (("train/cat", 3), ("train/dog", 2), ("test/cat", 4), ("test/dog", 1)):
        Path("split", folder).mkdir(parents=True)
        for k in range(number):
            noise(20, 20 + k, 3).save(f"split/{folder}/{k}.png")
    files = survey("split")
    assert (files.images, files.train, files.classes) == (10, 5, {"cat": 3, "dog": 2})
    assert recommend.survey_facts(files)["train"] == 5


def test_on_a_gpu_few_images_get_two_phases(cli, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: True)
        choice = recommend.choose_for("pictures")
    assert choice.recipe == "folder-perclass" and choice.loaded.data.size == 32
    assert choice.loaded.herd.first is not None and choice.loaded.herd.first.recipe == "folder-all"
    from ganherd.training.variants import phases

    settings = ["nets.generator.width=4", "nets.discriminator.width=4", "train.precision=float32"]
    wanted = recommend.recipe_file.load(choice.recipe, [*choice.sets, *settings])
    first = phases.before(wanted)
    assert (first.data.partition, first.herd.members, first.train.budget) == ("all", 1, "600s")
    assert phases.foreseen(phases.after(wanted), first).members == 2  # the nets of both phases fit


def test_tars_are_trained_on_and_the_run_resumes_from_another_folder(
    cli, brief, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for k in range(2):
        members = labelled(range(60 * k, 60 * k + 60), width=8, height=8, colour=False)
        write_tar(tmp_path / "tars" / f"bugs-{k}.tar", members)
    source = "tars/bugs-{0..1}.tar#label=cls"
    first = cli("train", source, *TINY, "--run", "run")
    assert first.code == 0
    recorded = recipe_file.load(tmp_path / "run" / "recipe.yaml").data.source
    assert recorded == str(tmp_path / source)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli("train", "--resume", "../run", "--budget", "4steps", "--quiet").code == 0
    write_tar(tmp_path / "tars" / "bugs-1.tar", labelled(range(200, 260), width=8, height=8, colour=False))
    changed = cli("train", "--resume", "../run", "--budget", "6steps", "--quiet")
    assert changed.code == 2 and "data" in changed.sentence


def test_a_wrong_source_of_samples_is_one_sentence(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "bugs.tar", labelled(range(6)))
    assert "there is no file bugs-0.tar" in cli("train", "bugs-{0..3}.tar").sentence
    assert "did you mean 'label'?" in cli("train", "bugs.tar#lable=cls").sentence
    assert "no option" in cli("data", "inspect", "bugs.tar#label=").sentence
    (tmp_path / "bugs.tar.gz").write_bytes(gzip.compress((tmp_path / "bugs.tar").read_bytes()))
    for words in (("train",), ("data", "inspect")):
        assert "a .tar that is not compressed" in cli(*words, "bugs.tar.gz").sentence
    assert "there is no file 'bug.tar.gz'; did you mean 'bugs.tar.gz'" in cli("train", "bug.tar.gz").sentence


def test_a_missing_file_of_data_is_named_and_a_near_one_is_suggested(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flowers.csv").write_text("a,b\n1,2\n")
    assert "there is no file 'flower.csv'; did you mean 'flowers.csv'?" in cli("train", "flower.csv").sentence
    assert "there is no file 'nowhere/x.npz'" in cli("train", "nowhere/x.npz").sentence
    assert "no packaged recipe" in cli("train", "nowhere.yaml").sentence


def test_score_against_pictures_of_mixed_sizes_names_the_way_out(cli) -> None:
    for folder, sizes in (("real", (8, 9)), ("fake", (8, 8))):
        (Path(folder) / "cat").mkdir(parents=True)
        for number, side in enumerate(sizes):
            Image.fromarray(np.full((side, side), 7 + number, np.uint8)).save(f"{folder}/cat/{number}.png")
    sentence = cli("score", "--real", "real", "--fake", "fake").sentence
    assert "images differ in size" in sentence and "for score, name a run that trained on them." in sentence
