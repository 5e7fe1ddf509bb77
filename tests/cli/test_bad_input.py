"""A user's mistake is one clear sentence on stderr with what to do, exit code 2, and nothing half done."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from recipes import tiny_data, tiny_recipe


@pytest.fixture
def train(cli, data):
    """The sentence with which a small recipe with these changes is refused; no run folder may be left."""

    def refused(*words: object, **sections: dict) -> str:
        Path("mine.yaml").write_text(yaml.safe_dump(tiny_recipe(data, **sections)))
        sentence = cli("train", "mine.yaml", "--run", "new", "--quiet", *words).sentence
        assert not Path("new").exists()
        return sentence

    return refused


def image(path: Path, size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, 90).save(path)
    return path


# -- recipes ----------------------------------------------------------------------------------------------------------


def test_recipes(train, cli) -> None:
    assert (
        "mine.yaml line " in (told := train(train={"bacth": 3}))
        and "'train.bacth'; did you mean 'train.batch'?" in told
    )
    assert "--set nets.generator.widht=3: unknown key" in train("--set", "nets.generator.widht=3")
    assert "nets.latent must be a whole number of at least 1" in train(nets={"latent": 0})
    assert "optim.lr_g must be" in train(optim={"lr_g": "fast"})
    assert "optim.lr_g lists 2 values, but the herd has 3 members" in train(optim={"lr_g": [1e-3, 1e-3]})
    assert "loss.name lists 4 values, but the herd has 3 members" in train(loss={"name": ["hinge"] * 4})
    assert "herd.members is 5, but small.npz has 3 classes" in train(herd={"members": 5})
    assert "run.weights names the label 'four'; the data has zero, one, 2" in train(run={"weights": {"four": 1.0}})
    assert train(run={"metrics": ["gam2"]}) == (
        "run.metrics: gam2 compares runs with each other; use `ganherd score --metrics gam2 RUN RUN`."
    )
    assert "graph" in train("--set", "engine.name=graph")
    assert "generator dcgan is made for images of" in train(nets={"generator": "dcgan"})
    assert "toy or mlp" in train("--set", "data.source=ring8", "--set", "nets.generator=wcgan")
    for words in (["train", ""], ["train", "", "--dry-run"], ["launch", "slurm", ""]):
        assert "the name of the recipe is empty" in cli(*words).sentence
    Path("new").mkdir()
    assert "new holds no images" in cli("train", "new").sentence
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "binary.yaml" in cli("train", "binary.yaml").sentence
    Path("empty.yaml").write_text("")
    assert "empty.yaml is empty" in cli("train", "empty.yaml").sentence


# -- data -------------------------------------------------------------------------------------------------------------


def test_data_that_is_not_there(train) -> None:
    assert "'missing.npz' is neither a known name nor a file or folder" in train("--set", "data.source=missing.npz")
    assert "did you mean 'mnist'?" in train("--set", "data.source=minst")


def test_a_folder_with_a_file_that_is_no_image(train, cli) -> None:
    for k in range(4):
        image(Path(f"pictures/cat/{k}.png"))
    Path("pictures/cat/notes.png").write_text("no picture")
    told = train("--set", "data.source=pictures")
    assert "notes.png" in told and "skip it with --set data.bad_images=skip" in told
    Path("mine.yaml").write_text(yaml.safe_dump(tiny_recipe("pictures")))
    answer = cli("train", "mine.yaml", "--run", "skipped", "--set", "data.bad_images=skip", "--budget", "1steps")
    assert answer.code == 0 and "notes.png" in answer.err  # named


def test_a_look_at_a_folder_names_what_is_no_image_and_goes_on(cli) -> None:
    for k in range(4):
        image(Path(f"pictures/cat/{k}.png"))
    whole = cli("data", "inspect", "pictures")
    assert whole.code == 0 and "cannot be used" not in whole.out
    Path("pictures/cat/notes.png").write_text("no picture")
    answer = cli("data", "inspect", "pictures")
    assert answer.code == 0 and "1 file in pictures cannot be used as images: cat/notes.png (no known" in answer.out
    assert json.loads(cli("data", "inspect", "pictures", "--json").out)["skipped"] == 1
    assert cli("data", "inspect", "pictures", "--skip-bad").out == answer.out  # as older scripts have it


def test_images_of_mixed_sizes(train) -> None:
    for k, size in enumerate([(8, 8), (8, 8), (9, 8)]):
        image(Path(f"pictures/cat/{k}.png"), size)
    told = train("--set", "data.source=pictures")
    assert "2.png" in told and "--set data.size=64" in told


def test_nan_pixels(train) -> None:
    x = np.zeros((10, 8, 8), np.float32)
    x[4, 2, 2] = np.nan
    np.savez("nan.npz", x=x, y=np.zeros(10, np.int64))
    assert "nan.npz has NaN or infinite values, the first in row 4" in train("--set", "data.source=nan.npz")


def test_an_empty_class(train) -> None:
    for k in range(3):
        image(Path(f"pictures/cat/{k}.png"))
    Path("pictures/dog").mkdir()
    assert "dog" in train("--set", "data.source=pictures")
    np.savez("gap.npz", x=np.zeros((6, 8, 8), np.uint8), y=np.zeros(6, np.int64), labels=np.array(["cat", "dog"]))
    assert "gap.npz has no training rows for class 'dog'" in train("--set", "data.source=gap.npz")


def test_a_folder_whose_name_is_no_text_is_still_a_class(cli) -> None:
    for name in (b"\xff\xfe", b"dog"):
        for k in range(4):
            image(Path("pictures", os.fsdecode(name), f"{k}.png"))
    facts = json.loads(cli("data", "inspect", "pictures", "--json").out)
    assert sorted(row["name"] for row in facts["classes"]) == ["??", "dog"]


def test_data_without_labels_by_class(train) -> None:
    np.savez("plain.npz", x=np.zeros((6, 8, 8), np.uint8))
    assert "by-class, but plain.npz has no labels; set data.partition to all" in train("--set", "data.source=plain.npz")


@pytest.mark.usefixtures("brief")
def test_a_batch_larger_than_the_data_wraps_with_a_word(cli, data) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump(tiny_recipe(data, train={"batch": 100, "budget": "1steps"})))
    answer = cli("train", "mine.yaml", "--run", "new")
    assert answer.code == 0 and "fewer rows than a batch of 100 and see some more than once:" in answer.err


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_folder_that_exists(cli, run, data) -> None:
    before = (run / "run.json").read_bytes()
    Path("mine.yaml").write_text(yaml.safe_dump(tiny_recipe(data)))
    told = cli("train", "mine.yaml", "--run", run, "--quiet").sentence
    assert "exists already" in told and f"ganherd train --resume {run}" in told
    assert (run / "run.json").read_bytes() == before
    Path("file").write_text("")
    assert "file exists already" in cli("train", "mine.yaml", "--run", "file", "--quiet").sentence
    assert "cannot be made" in cli("train", "mine.yaml", "--run", "file/new", "--quiet").sentence
    assert "/proc/new" in cli("train", "mine.yaml", "--run", "/proc/new", "--quiet").sentence


def test_a_resume_with_a_changed_recipe_shows_the_difference(cli, run, data) -> None:
    copy = Path(shutil.copytree(run, "copy"))
    told = cli("train", "--resume", copy, "--set", "train.batch=4").sentence
    assert "train.batch: 8 -> 4" in told and "start a new run" in told
    Path("mine.yaml").write_text(yaml.safe_dump(tiny_recipe(data, optim={"lr_g": 0.5})))
    told = cli("train", "mine.yaml", "--resume", copy).sentence
    assert "optim.lr_g: 0.0002 -> 0.5" in told
    assert "herd.seeds: 1 -> 2" in cli("train", "--resume", copy, "--seeds", 2).sentence
    assert "has done 6 steps already, more than the 2" in cli("train", "--resume", copy, "--budget", "2steps").sentence


@pytest.mark.usefixtures("brief")
def test_a_resume_on_changed_data(cli, tmp_path) -> None:
    import ganherd

    source = tiny_data(tmp_path / "changing.npz")
    path = ganherd.train(tiny_recipe(source, train={"budget": "1steps"}), run=tmp_path / "run", quiet=True).path
    tiny_data(source, each=(41, 20, 20))
    assert (
        "the data of" in (told := cli("train", "--resume", path, "--budget", "2steps").sentence)
        and "has changed" in told
    )
    source.unlink()
    assert "neither a known name nor a file" in cli("train", "--resume", path, "--budget", "2steps").sentence
    assert "neither a known name nor a file" in cli("score", path, "--quiet").sentence
    assert cli("sample", path, "-o", "x.npz").code == 0  # needs no data
    assert cli("report", path).code == 0  # leaves out what it cannot read, and says so


def test_places_for_pictures(cli, data) -> None:
    assert "/proc" in cli("data", "inspect", data, "-o", "/proc/sheet.png").sentence
    assert cli("data", "inspect", data, "-o", "made/sheet.png").code == 0 and Path("made/sheet.png").exists()


# -- a user's own nets ------------------------------------------------------------------------------------------------

NETS = '''
import torch
from torch import nn

class Base(nn.Module):
    def __init__(self, shape=(1, 8, 8), latent=8):
        super().__init__()
        self.shape, self.w, self.v = tuple(shape), nn.Linear(latent, 64), nn.Linear(64, 1)
    def make(self, z):
        return torch.tanh(self.w(z)).reshape(-1, *self.shape)
    def judge(self, x):
        return self.v(x.flatten(1))

class G(Base):
    def forward(self, z):
        return self.make(z)

class D(Base):
    def forward(self, x):
        return self.judge(x)

class Small(Base):
    def forward(self, z):
        return self.make(z)[:, :, :4]

class Two(Base):
    def forward(self, x):
        return torch.cat([self.judge(x)] * 2, 1)

class Pair(Base):
    def forward(self, x):
        return self.judge(x), x

class Raises(Base):
    def __init__(self):
        raise RuntimeError("no\\nluck")

class Fails(Base):
    def forward(self, x):
        raise KeyError("inside")

class Wants(Base):
    def __init__(self, depth):
        super().__init__()

class Random(Base):
    def forward(self, x):
        return self.judge(x * torch.bernoulli(torch.full_like(x, 0.5)))

class Attention(Base):
    def forward(self, x):
        x = x[:, 0]
        return self.judge(nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5))

class Several(Base):
    def forward(self, x):
        return [self.judge(x), x]

class HalfEmpty(Base):
    def forward(self, x):
        return self.judge(x), None

class Branches(Base):
    def forward(self, x):
        return self.judge(x if x.mean() > 5 else -x)

class Turns(Base):
    def forward(self, z):
        return self.make(z if z.mean() > 5 else -z)

class Whole(Base):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)

def function(shape):
    return None
'''  # fmt: skip


@pytest.mark.parametrize(
    ("role", "name", "said"),
    [
        ("generator", "Small", "makes images of shape (1, 4, 8), but the data has (1, 8, 8)"),
        ("discriminator", "Two", "answers (8, 2) for 8 images; it must give one logit for each"),
        ("discriminator", "Pair", "answers 2 tensors, the second (8, 1, 8, 8) for 8 images"),
        ("discriminator", "Several", "returns a list: it must return one tensor of logits, or the pair"),
        ("discriminator", "HalfEmpty", "returns a tuple of Tensor, NoneType: it must return one tensor of logits"),
        ("generator", "Raises", "could not be built: RuntimeError: no luck"),
        (
            "generator",
            "Fails",
            "with latent 8, for which z has the shape [batch, 8]: KeyError",
        ),
        ("generator", "Wants", "missing a required argument: 'depth'"),
        ("discriminator", "Random", "draws random numbers with bernoulli"),
        ("discriminator", "Attention", "no member's stream can give"),
        ("discriminator", "Whole", "is not a float tensor"),
        ("generator", "function", "is not a class derived from torch.nn.Module"),
        ("generator", "Nothing", "could not be imported: AttributeError"),
        ("generator", "", "could not be imported"),
    ],
)
def test_nets_that_do_not_fit(train, role, name, said) -> None:
    Path("their_nets.py").write_text(NETS)
    told = train("--set", f"nets.{role}={{name: 'their_nets:{name}', settings: {{}}}}")
    assert said in told


@pytest.mark.parametrize("role", ["generator", "discriminator"])
@pytest.mark.usefixtures("brief")
def test_nets_that_cannot_be_fused_are_trained_one_by_one(train, cli, role) -> None:
    Path("their_nets.py").write_text(NETS)
    name = {"generator": "Turns", "discriminator": "Branches"}[role]
    words = ["--set", f"nets.{role}={{name: 'their_nets:{name}', settings: {{}}}}"]
    told = train(*words, "--set", "engine.name=fused")
    assert "the nets cannot be fused (" in told and "set it to loop" in told
    answer = cli("train", "mine.yaml", *words, "--run", "looped", "--set", "engine.name=auto", "--budget", "1steps")
    assert answer.code == 0 and "trained one after another" in answer.err


def test_a_module_that_is_not_there(train) -> None:
    assert "could not be imported: ModuleNotFoundError: No module named 'nowhere'" in train(
        "--set", "nets.generator={name: 'nowhere:G', settings: {}}"
    )
    Path("broken_nets.py").write_text("1 / 0\n")
    assert "ZeroDivisionError" in train("--set", "nets.generator={name: 'broken_nets:G', settings: {}}")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("train", "--budget", "10parsecs"), "--budget 10parsecs: train.budget must be steps, epochs or time"),
        (("train", "--seeds", "0"), "--seeds 0: herd.seeds must be a whole number of at least 1"),
        (("train", "digits-conditional", "--grow", "RUN"), "--grow RUN: herd.grow_from adds classes to members that never"),
        (("train", "--resume", "RUN", "--budget", "10parsecs"), "--budget 10parsecs: train.budget must be"),
        (("compare", "digits-wcgan", "r15-gap4", "--budget", "10parsecs"), "--budget 10parsecs: train.budget must be"),
        (("sweep", "digits-wcgan", "--vary", "optim.lr_g=1e-3,1e-4", "--seeds", "70000"), "--seeds 70000: herd.seeds must be"),
        (("launch", "slurm", "digits-wcgan", "--budget", "10parsecs"), "--budget 10parsecs: train.budget must be"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_reported_with_the_option_that_gave_it(cli, run, command: tuple[str, ...], named: str) -> None:
    message = cli(*(word.replace("RUN", str(run)) for word in command)).sentence
    assert message.startswith(named.replace("RUN", str(run))) and "--set" not in message


def test_a_wrong_budget_of_resume_is_reported_with_that_argument(run) -> None:
    import ganherd
    from ganherd.util.errors import UserError

    with pytest.raises(UserError, match=r"^budget='10parsecs': train\.budget must be"):
        ganherd.Run(run).resume(budget="10parsecs")
