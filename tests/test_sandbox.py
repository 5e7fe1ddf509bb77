"""The suite sees what a fresh machine has and nothing else: a test that opens a file outside of its sandbox fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sandbox_hook
import sandbox_plugin

OPENS_OUTSIDE = {
    "in_the_test_itself": "open(OUTSIDE).close()",
    "behind_code_that_swallows_exceptions": "try:\n    open(OUTSIDE).close()\nexcept BaseException:\n    pass",
    "to_write": "open(OUTSIDE, 'a').close()",
    "by_a_relative_name": "monkeypatch.chdir(Path(OUTSIDE).parent)\nopen(Path(OUTSIDE).name).close()",
    "through_a_link": "(tmp_path / 'link').symlink_to(OUTSIDE)\nopen(tmp_path / 'link').close()",
    "through_a_linked_folder": "(tmp_path / 'd').symlink_to(Path(OUTSIDE).parent)\nopen(tmp_path / 'd/outside').close()",
    "in_a_subprocess": "subprocess.run([sys.executable, '-c', f'open({OUTSIDE!r})'], check=True)",
    "in_a_process_of_a_process": "subprocess.run(['sh', '-c', f'{sys.executable} {READER} {OUTSIDE}'], check=True)",
    "in_a_forked_process_that_is_killed": """
if not (child := os.fork()):
    open(OUTSIDE).close()
    os.kill(os.getpid(), 9)
os.waitpid(child, 0)""",
}
OPENS_WHAT_EVERY_MACHINE_HAS = {
    "a_file_of_its_own": "(tmp_path / 'file').write_text('x')",
    "a_file_of_the_clone": "open(__file__).close()",
    "a_package": "open(pytest.__file__).close()",
    "the_system": "open('/proc/self/status').close()",
    "a_subprocess": "subprocess.run([sys.executable, '-c', 'import json, tempfile; tempfile.mkdtemp()'], check=True)",
    "nothing_that_others_left": "assert not list(Path.home().iterdir()) and not list(Path(os.environ['GANHERD_DATA']).iterdir())",
}
ESCAPES = {"a_bare_environment": "subprocess.run([sys.executable, '-c', ''], env={'PATH': os.environ['PATH']})"}

HEAD = """
import os, subprocess, sys
from pathlib import Path
import pytest
OUTSIDE, READER = {outside!r}, {reader!r}

"""


def session(folder: Path, tests: dict[str, str], **environ: str) -> str:
    """Return what pytest prints about these tests, in a session and a sandbox of their own."""
    project = folder / "project"
    project.mkdir()
    (folder / "outside").write_text("of no test's business")
    (project / "reader.py").write_text("import sys; open(sys.argv[1])\n")
    text = HEAD.format(outside=str(folder / "outside"), reader=str(project / "reader.py"))
    for name, body in tests.items():
        text += f"def test_{name}(tmp_path, monkeypatch):\n" + re.sub("^", "    ", body, flags=re.M) + "\n\n"
    (project / "test_example.py").write_text(text)
    given = {name: value for name, value in os.environ.items() if name != sandbox_plugin.SANDBOX}
    given |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environ}
    words = [sys.executable, "-m", "pytest", "-p", "sandbox_plugin", "-p", "no:cacheprovider", "--rootdir=.", "-rA"]
    return subprocess.run([*words, "test_example.py"], cwd=project, env=given, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    return session(tmp_path_factory.mktemp("session"), OPENS_WHAT_EVERY_MACHINE_HAS | OPENS_OUTSIDE | ESCAPES)


@pytest.mark.parametrize("name", OPENS_OUTSIDE)
def test_a_test_that_opens_a_file_outside_fails_with_its_name_and_the_path(name: str, said: str) -> None:
    assert f"FAILED test_example.py::test_{name} - " in said, said
    assert re.search(rf"^test_example.py::test_{name} \(call\): '.*outside'$", said, re.M), said


@pytest.mark.parametrize("name", OPENS_WHAT_EVERY_MACHINE_HAS)
def test_a_test_may_open_what_every_machine_has(name: str, said: str) -> None:
    assert f"PASSED test_example.py::test_{name}\n" in said, said


@pytest.mark.parametrize("name", ESCAPES)
def test_a_process_that_would_not_be_watched_fails_its_test(name: str, said: str) -> None:
    assert f"FAILED test_example.py::test_{name} - " in said and "a process without this hook" in said, said


def test_the_sandbox_is_removed_afterwards(tmp_path: Path) -> None:
    names = ("HOME", "XDG_CACHE_HOME", "GANHERD_DATA", "GANHERD_CACHE", "TMPDIR")
    said = session(tmp_path, {"places": f"print('places', *(os.environ[name] for name in {names}))"})
    (line,) = [line for line in said.splitlines() if line.startswith("places ")]
    places = [Path(word) for word in line.split()[1:]]
    assert len({place.parents[len(place.parents) - 3] for place in places}) == 1 and len(places) == len(names)
    assert not any(place.exists() for place in places) and not places[0].parent.exists()


def test_real_data_is_seen_only_if_it_is_asked_for(tmp_path: Path) -> None:
    for name in ("real", "a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "real" / "mnist.npz").write_text("")
    reads = {"reads": "open(Path(os.environ['GANHERD_DATA']) / 'mnist.npz').close()"}
    assert "1 failed" in session(tmp_path / "a", reads, GANHERD_DATA=str(tmp_path / "real"))
    assert "1 passed" in session(tmp_path / "b", reads, GANHERD_TEST_DATA=str(tmp_path / "real"))


def test_this_session_has_a_sandbox() -> None:
    folder = os.environ[sandbox_plugin.SANDBOX]
    assert os.environ["HOME"].startswith(folder) and os.environ["XDG_CACHE_HOME"].startswith(folder)
    assert os.environ[sandbox_hook.LOG].startswith(folder)
