"""`ganherd export`: each format from a trained run, checked as its users would use it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ganherd.export.model_card import card
from ganherd.export.portable_model import portable_model
from ganherd.mixture.mixture import load
from ganherd.runs.folder import RunFolder


def sampled(cli: Any, run: Path, *options: object) -> dict[str, np.ndarray]:
    assert cli("sample", run, "--portable", "-o", "expected.npz", *options).code == 0
    with np.load("expected.npz", allow_pickle=False) as file:
        return dict(file)


def grey_levels(images: Any, expected: np.ndarray) -> float:
    return float(np.abs(np.asarray(images, np.float64) - expected).max())


def test_torch_folder_works_without_ganherd(cli, run) -> None:
    answer = cli("export", run, "-o", "model", "--json")
    facts = json.loads(answer.out)
    assert facts["output"] == "model" and facts["members"] == 3 and facts["largest_difference"] <= 1
    assert sorted(path.name for path in Path("model").iterdir()) == ["loader.py", "model.safetensors"]
    expected = sampled(cli, run, "-n", 20, "--seed", 7)
    script = (
        "import sys; sys.modules['ganherd'] = sys.modules['safetensors'] = None\n"
        "import loader, json; x, y = loader.load('model.safetensors').sample(range(7, 27))\n"
        "print(json.dumps([x.tolist(), y.tolist()]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd="model", capture_output=True, text=True, check=True)
    x, y = json.loads(done.stdout)
    assert grey_levels(x, expected["x"]) <= 1 and y == expected["y"].tolist()


def test_onnx_file_equals_ganherd_sample(cli, run) -> None:
    import onnxruntime

    answer = cli("export", run, "--format", "onnx", "-o", "model.onnx")
    assert answer.code == 0 and "checked with ONNX Runtime: 64 samples differ" in answer.out
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    assert [(put.name, put.shape) for put in session.get_inputs()] == [("label", ["batch"]), ("seed", ["batch"])]
    expected = sampled(cli, run, "--per-class", 4)
    labels, seeds = np.repeat(np.arange(3), 4), np.tile(np.arange(4), 3)
    x, y, member = session.run(None, {"label": labels, "seed": seeds})
    assert grey_levels(x, expected["x"]) <= 1
    assert np.array_equal(y, expected["y"]) and np.array_equal(member, expected["member"])


def test_portable_folder_of_images_equals_the_arrays(cli, run) -> None:
    assert cli("sample", run, "--portable", "--per-class", 2, "-o", "images/").code == 0
    expected = sampled(cli, run, "--per-class", 2)
    first = np.asarray(Image.open(sorted(Path("images").glob("*/*.png"))[0]))
    assert any(np.array_equal(first, image[0]) for image in expected["x"])
    assert "too large for portable samples" in cli("sample", run, "--portable", "--seed", 2**63, "-o", "x.npz").sentence


def test_hub_folder_has_a_card_that_the_hub_library_reads(cli, run) -> None:
    from huggingface_hub import ModelCard

    assert cli("export", run, "--format", "hub", "--license", "cc-by-4.0", "-o", "hub").code == 0
    read = ModelCard.load(Path("hub/README.md"))
    assert read.data.license == "cc-by-4.0" and "ganherd" in read.data.tags
    assert read.data.pipeline_tag == "unconditional-image-generation"
    for heading in ("Data", "Scores", "Verdict", "Memorisation", "Limits", "How it was trained", "Licence"):
        assert f"\n## {heading}\n" in read.text
    assert str(run) not in read.text
    assert Image.open("hub/samples.png").format == "PNG" and Path("hub/model.safetensors").is_file()
    assert cli("export", run, "--format", "hub", "-o", "bare").code == 0
    bare = ModelCard.load(Path("bare/README.md"))
    assert bare.data.license == "unknown" and "No licence was chosen" in bare.text


def test_card_shows_scores_with_samples_and_intervals(run, tmp_path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    interval = {"low": 2.5, "high": 3.5, "level": 0.95, "how": "bootstrap"}
    fid = {"value": 3.0, "samples": 1234, "network": "net|<b>", "interval": interval, "real_samples": 777}
    evidence = {"copies": 0.125, "samples": 512, "held_out": 99}
    verdict = {"word": "memorising", "reason": "copies <script>", "try_next": "add images", "evidence": evidence}
    (copy / "scores.json").write_text(json.dumps({"scores": {"fid": fid}, "verdict": verdict}))
    whole = load(copy)
    text = card(RunFolder(copy), whole, portable_model(whole, title="a\n# b"), "mit")
    assert "| FID | 3.000 | 2.500 to 3.500 | 1,234 | net\\|&lt;b&gt; | lower is better |" in text
    assert (
        "memorising: copies &lt;script&gt;." in text and "12.5% of 512 samples" in text and "777 training rows" in text
    )
    assert "add images" not in text  # advice to the author, not to the readers of the card
    assert "<script>" not in text and "\n# b" not in text
    part = card(RunFolder(copy), whole, portable_model(whole, member=0), "mit", whole=False)
    assert "those of the whole mixture" in part
    copy.joinpath("scores.json").write_text("[]")
    assert "This run has no scores." in card(RunFolder(copy), whole, portable_model(whole), "mit")


def test_mistakes_are_one_sentence(cli, run) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    assert "exists already and is not an empty folder" in cli("export", run, "-o", "full").sentence
    assert "must end with .onnx" in cli("export", run, "--format", "onnx", "-o", "model").sentence
    assert "must end with .html" in cli("export", run, "--format", "html", "-o", "model.htm").sentence
    assert "there is no member 9" in cli("export", run, "--member", 9, "-o", "x").sentence
    assert "there is no replica 4" in cli("export", run, "--replica", 4, "-o", "x").sentence
    assert (
        "--license MIT licence" in cli("export", run, "--format", "hub", "--license", "MIT licence", "-o", "x").sentence
    )
    assert not Path("x").exists()


def test_missing_package_is_named(cli, run, monkeypatch) -> None:
    monkeypatch.setattr("ganherd.export.write_export.find_spec", lambda name: None)
    assert "pip install 'ganherd[export]'" in cli("export", run, "--format", "onnx", "-o", "x.onnx").sentence
    assert not list(Path().iterdir())


def test_net_of_a_stranger_is_not_run_without_leave(cli, run, tmp_path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    facts = json.loads((copy / "mixture" / "mixture.json").read_text())
    facts["generator"] = {"name": "antigravity_of_a_stranger:Net", "settings": {}}
    (copy / "mixture" / "mixture.json").write_text(json.dumps(facts))
    for kind, target in (("torch", "x"), ("onnx", "x.onnx"), ("html", "x.html"), ("hub", "y")):
        assert "--trust-code" in cli("export", copy, "--format", kind, "-o", target).sentence
    assert not list(Path().iterdir())
