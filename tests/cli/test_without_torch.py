"""Help, lists and every mistake that needs no nets answer at once: torch is not imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASKED = [  # what is typed, the exit code, a word of the answer
    (["--help"], 0, "Train many GANs as one"),
    (["-h"], 0, "sample"),
    ([], 0, "Usage: ganherd [OPTIONS]"),
    (["data"], 0, "Usage: ganherd data"),
    (["--version"], 0, "ganherd 0."),
    (["train", "--help"], 0, "--dry-run"),
    (["sample", "-h"], 0, "--per-class"),
    (["data", "--help"], 0, "inspect"),
    (["bench", "fusion", "--help"], 0, "--sizes"),
    (["recipes"], 0, "digits-wcgan"),
    (["recipes", "ring8"], 0, "source: ring8"),
    (["recipes", "gap"], 0, "mnist-gap-d4"),
    (["recipes", "--keys", "lr"], 0, "optim.lr_g"),
    (["recipes", "--schema"], 0, "json-schema.org"),
    (["runs"], 0, "There are no runs in runs"),
    (["runs", "nowhere"], 2, "there is no folder nowhere"),
    (["runs", "tag", "nowhere", "best"], 2, "there is no run folder nowhere"),
    (["status", "@last"], 2, "there is none"),
    (["recipes", "digits-wcgn"], 2, "did you mean 'digits-wcgan'?"),
    (["data", "list"], 0, "digits"),
    (["trian"], 2, "trian"),
    (["train", "--bugdet", "3steps"], 2, "--budget"),
    (["train", "--budget", "3 apples"], 2, "5000steps, 20epochs, 90s"),
    (["train", "--budget", "0steps"], 2, "above zero"),
    (["train", "--seeds", "0"], 2, "at least 1"),
    (["train", "--seeds", "many"], 2, "--seeds"),
    (["train", "nowhere.yaml"], 2, "there is no recipe file 'nowhere.yaml'"),
    (["train", "digits-wcgan", "--set", "train.bacth=3"], 2, "unknown key 'train.bacth'; did you mean 'train.batch'?"),
    (["train", "--set", "train.batch"], 2, "write key=value"),
    (["train", "--set", "train.batch=0"], 2, "train.batch must be a whole number of at least 1"),
    (["train", "--set", "nets.latent=0"], 2, "nets.latent must be a whole number of at least 1"),
    (["train", "--set", "nets.generator=cnn"], 2, "there is no generator 'cnn'"),
    (["train", "--set", "loss.name=wgan-gp"], 2, "did you mean 'wasserstein-gp'?"),
    (["train", "wrong.yaml"], 2, "wrong.yaml line 2: unknown key 'train.bacth'"),
    (["train", "folder"], 2, "folder holds no images"),
    (["train", "--resume", "nowhere"], 2, "there is no run folder nowhere"),
    (["train", "--resume", "folder"], 2, "folder is not a run folder"),
    (["train", "--resume", "folder", "--run", "other"], 2, "leave --run out"),
    (["train", "--resume", "folder", "--dry-run"], 2, "--dry-run is for new runs"),
    (["status", "nowhere"], 2, "there is no run folder nowhere"),
    (["ui", "--help"], 0, "--port"),
    (["ui", "nowhere"], 2, "there is no folder nowhere"),
    (["report", "nowhere"], 2, "there is no run folder nowhere"),
    (["sample"], 2, "Missing argument 'run'. See `ganherd sample --help`."),
    (["sample", "nowhere", "-o", "x.npz"], 2, "there is no run folder nowhere"),
    (["sample", "folder", "-o", "x.npz"], 2, "folder is not a run folder"),
    (["sample", "folder", "-o", "x.npz", "-n", "0"], 2, "-n"),
    (["score", "nowhere", "--metrics", "fdi"], 2, "there is no metric named 'fdi'"),
    (["score", "nowhere"], 2, "there is no run folder nowhere"),
    (["compare", "--help"], 0, "--downstream"),
    (["compare", "digits-wcgan", "--budget", "9s"], 2, "at least two recipes"),
    (["compare", "digits-wcgan", "digits-nonsat", "--budget", "9s", "--metrics", "fdi"], 2, "no metric named 'fdi'"),
    (["compare", "--downstream", "nowhere"], 2, "there is no run folder nowhere"),
    (["sample", "folder", "-o", "x.npz", "--weights", "cat"], 2, "folder is not a run folder"),
    (["export", "--help"], 0, "--format"),
    (["export", "nowhere", "-o", "x"], 2, "there is no run folder nowhere"),
    (["export", "folder", "-o", "x", "--license", "mit"], 2, "--license is for the model card of --format hub"),
    (["ensemble", "--help"], 0, "classifier_score"),
    (["ensemble", "nowhere", "--by", "recall"], 2, "recall is no score to weigh generators by"),
    (["train", "--set", "strategy.cellular.mixing.score=fdi"], 2, "did you mean 'fid'?"),
    (["bench", "fusion", "--sizes", "1,x"], 2, "--sizes 1,x"),
    (["bench", "fusion", "--net", "vgg"], 2, "there is no benchmark of 'vgg'"),
    (["data", "get", "cifra10"], 2, "cifar10"),
    (["data", "get", "digits"], 0, "digits needs no file: nothing had to be fetched."),
    (["data", "inspect", "nowhere"], 2, "'nowhere' is neither a known name nor a file"),
]
PROGRAM = """
import contextlib, io, json, sys
sys.path.insert(0, {blocked!r})
answers = []
for words in {asked!r}:
    sys.argv = ["ganherd", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            from ganherd.cli.main import main
            main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:
            code = repr(error)
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps([answers, "torch" in sys.modules]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], tuple[int | str, str, str]]:
    """All of them in one process, whose torch is a trap."""
    import json

    here = tmp_path_factory.mktemp("here")
    blocked = tmp_path_factory.mktemp("blocked")
    (blocked / "torch.py").write_text("raise ImportError('torch was imported')\n")
    (here / "wrong.yaml").write_text("train:\n  bacth: 3\n")
    (here / "folder").mkdir()
    program = PROGRAM.format(blocked=str(blocked), asked=[words for words, _, _ in ASKED])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=here, env=environment(blocked), capture_output=True, text=True, check=True
    )
    found, imported = json.loads(done.stdout)
    assert not imported
    return {tuple(words): tuple(answer) for (words, _, _), answer in zip(ASKED, found, strict=True)}


def environment(first: Path) -> dict[str, str]:
    source = Path(__file__).resolve().parents[2] / "src"
    paths = [str(first), str(source), os.environ["PYTHONPATH"]]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", "NO_COLOR": "1"}


@pytest.mark.parametrize(("words", "code", "said"), ASKED, ids=lambda value: str(value))
def test_it_answers(answers, words, code, said) -> None:
    found, out, err = answers[tuple(words)]
    assert found == code, err
    assert said in (out if code == 0 else out + err)
    if code == 2 and words:
        assert out == ""
        lines = err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("ganherd: "), err


@pytest.mark.further
def test_python_m_ganherd_is_ganherd(tmp_path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')\n")
    for words in (["--version"], ["recipes", "ring8"], ["train", "--bugdet", "1"]):
        both = [
            subprocess.run([*start, *words], env=environment(tmp_path), capture_output=True, text=True, cwd=tmp_path)
            for start in ([sys.executable, "-m", "ganherd"], [str(Path(sys.executable).with_name("ganherd"))])
            if len(start) > 1 or Path(start[0]).exists()
        ]
        assert len({(done.returncode, done.stdout, done.stderr) for done in both}) == 1
        assert both[0].returncode in (0, 2) and both[0].stdout + both[0].stderr


def test_help_imports_nothing_that_is_slow(tmp_path) -> None:
    """Settings are checked by pydantic, pictures and tables need more; the list of commands needs none of it."""
    for slow in ("torch", "pydantic", "numpy", "rich", "yaml", "sklearn", "matplotlib", "PIL"):
        (tmp_path / f"{slow}.py").write_text(f"raise ImportError('{slow} was imported')\n")
    done = subprocess.run(
        [sys.executable, "-m", "ganherd", "--help"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0 and "ganherd" in done.stdout, done.stderr


def test_the_reader_of_a_closed_pipe_gets_no_traceback(tmp_path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')\n")
    command = f"'{sys.executable}' -m ganherd recipes digits-wcgan | head -1"
    done = subprocess.run(["bash", "-c", command], env=environment(tmp_path), capture_output=True, text=True)
    assert done.stdout.startswith("#") and "Traceback" not in done.stderr
