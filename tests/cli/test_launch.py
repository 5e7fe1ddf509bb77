"""`ganherd launch slurm`: a valid bash script that saves before its time limit and resumes in the next job."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from tiny_runs import command

from ganherd.runs.folder import RunFolder
from ganherd.slurm import MARK, Job, script, slurm_time

# In place of srun: says what it was given, and ends with a code, or waits for a signal and saves.
RANKS = """#!/bin/bash
printf '%s\\n' "$@" >> asked
trap 'touch saved; exit {saved}' {signal}
echo $$ > pid
touch up
[ -n "{ends}" ] && exit {ends}
for i in $(seq 500); do sleep 0.02 & wait $!; done
exit 9
"""


def site(
    folder: Path, *, ends: str = "", signal_name: str = "USR1", saved: int = 75, requeues: int = 0
) -> dict[str, str]:
    """A folder with the commands of a cluster, and the environment of a job there."""
    (folder / "bin").mkdir()
    programs = {
        "srun": RANKS.format(ends=ends, signal=signal_name, saved=saved),
        "mpiexec": RANKS.format(ends=ends, signal=signal_name, saved=saved),
        "scontrol": f'#!/bin/bash\nif [ "$1" = show ]; then echo node07; else echo "$@" >> requeued; exit {requeues}; fi\n',
        "scancel": '#!/bin/bash\n[ "$*" = "--signal=TERM 42" ] && kill -TERM "$(cat pid)"\n',
        "sbatch": "#!/bin/bash\necho Submitted batch job 7\n",
        "module": '#!/bin/bash\necho "$@" >> modules\n',
    }
    for name, content in programs.items():
        (folder / "bin" / name).write_text(content)
        (folder / "bin" / name).chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node[07-08]"}


def start(folder: Path, text: str, environ: dict[str, str]) -> subprocess.Popen[str]:
    (folder / "job.sh").write_text(text)
    return subprocess.Popen(
        ["bash", "job.sh"], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def until(path: Path) -> None:
    for _ in range(2000):
        if path.exists():
            return
        threading.Event().wait(0.005)
    raise AssertionError(f"{path} never came")


def job(**changes: object) -> Job:
    return Job(("digits-wcgan",), Path("runs/digits"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"nodes": 2, "ranks_per_node": 4, "gpus_per_node": 4, "launcher": "torchrun", "container": "a b.sif"},
        {
            "ranks_per_node": 8,
            "launcher": "mpiexec",
            "launcher_options": "--with-ft ulfm",
            "modules": ("openmpi/5", "x"),
        },
        {"array": 10, "members_each": 10, "partition": "gpu", "account": "me"},
    ],
)
def test_script_is_valid_bash(changes: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(script(job(**changes)))
    done = subprocess.run(["bash", "-n", str(tmp_path / "job.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_directives_of_sbatch() -> None:
    text = script(
        job(nodes=2, ranks_per_node=4, cpus_per_rank=3, gpus_per_node=4, time="36h", partition="gpu", account="me")
    )
    directives = {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")}
    assert directives >= {
        "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=3", "--gpus-per-node=4", "--time=36:00:00", "--partition=gpu",
        "--account=me", "--signal=B:USR1@120", "--requeue", "--open-mode=append", "--job-name=ganherd-digits",
    }  # fmt: skip
    assert "srun --kill-on-bad-exit=1 ganherd train" in text and "OMP_NUM_THREADS=3" in text
    before, found, _ = text.partition("\nexport SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n")
    assert found and "srun " not in before  # which srun does not inherit


def test_one_torchrun_per_node_starts_the_ranks() -> None:
    text = script(
        job(nodes=2, ranks_per_node=4, cpus_per_rank=3, gpus_per_node=4, launcher="torchrun", container="x.sif")
    )
    assert "#SBATCH --ntasks-per-node=1\n" in text and "#SBATCH --cpus-per-task=12\n" in text
    assert "srun apptainer exec --nv x.sif torchrun --nnodes 2 --nproc-per-node 4 --max-restarts 3 " in text
    assert "-m -- ganherd train" in text  # else torchrun takes --run for its own --run-path


@pytest.mark.parametrize(("launcher", "heard"), [("srun", "USR1"), ("mpiexec", "USR1"), ("torchrun", "TERM")])
def test_job_saves_and_requeues_before_its_time_limit(launcher: str, heard: str, tmp_path: Path) -> None:
    """torchrun does not pass SIGUSR1 on, and answers 1 where its ranks answer 75; srun answers SIGTERM by killing all."""
    environ = site(tmp_path, signal_name=heard, saved=1 if launcher == "torchrun" else 75)
    running = start(tmp_path, script(job(launcher=launcher, ranks_per_node=2)), environ)
    until(tmp_path / "up")
    running.send_signal(signal.SIGUSR1)
    said = running.communicate(timeout=60)[0]
    assert running.returncode == 75, said
    assert (tmp_path / "saved").exists() and (tmp_path / "requeued").read_text() == "requeue 42\n"
    assert "job 42 is in the queue again" in said


def test_a_cancelled_job_saves_and_stays_out_of_the_queue(tmp_path: Path) -> None:
    running = start(tmp_path, script(job()), site(tmp_path))
    until(tmp_path / "up")
    running.send_signal(signal.SIGTERM)
    said = running.communicate(timeout=60)[0]
    assert running.returncode == 75 and (tmp_path / "saved").exists(), said
    assert not (tmp_path / "requeued").exists() and "or run: ganherd train --resume runs/digits" in said


@pytest.mark.parametrize(
    ("ends", "requeued", "word"),
    [("0", False, ""), ("75", True, "in the queue again"), ("1", False, "submit this script again")],
)
def test_only_interrupted_jobs_are_requeued(ends: str, requeued: bool, word: str, tmp_path: Path) -> None:
    running = start(tmp_path, script(job(modules=("cuda/12",))), site(tmp_path, ends=ends))
    said = running.communicate(timeout=60)[0]
    assert running.returncode == int(ends) and word in said
    assert (tmp_path / "requeued").exists() == requeued
    assert (tmp_path / "modules").read_text() == "load cuda/12\n"


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("running", 1)])
def test_job_fails_if_all_ranks_were_lost(state: str, code: int, tmp_path: Path) -> None:
    """An mpiexec that goes on without lost ranks ends with 0, whoever is left."""
    run = RunFolder.create(tmp_path / "runs" / "digits")
    run.write_info(state=state)
    made = job(launcher="mpiexec", launcher_options="--with-ft ulfm", ranks_per_node=2)
    running = start(tmp_path, script(made), site(tmp_path, ends="0"))
    said = running.communicate(timeout=60)[0]
    assert running.returncode == code and ("submit this script again" in said) == bool(code), said


def test_failed_requeue_prints_how_to_resume(tmp_path: Path) -> None:
    running = start(tmp_path, script(job()), site(tmp_path, ends="75", requeues=1))
    assert "submit this script again to resume" in running.communicate(timeout=60)[0] and running.returncode == 75


def test_next_job_resumes_the_run(tmp_path: Path) -> None:
    """With its settings, which are compared with those of the run. A requeued job leaves them out: it has compared them."""
    settings = ["digits-wcgan", "--set=data.source=a b"]
    variant = Job(tuple(settings), Path("my runs/x"))
    environ = site(tmp_path, ends="0")
    for requeues, words in (
        ("0", [*settings, "--run", "my runs/x"]),
        ("0", [*settings, "--resume", "my runs/x"]),
        ("1", ["--resume", "my runs/x"]),
    ):
        (tmp_path / "asked").unlink(missing_ok=True)
        start(tmp_path, script(variant), {**environ, "SLURM_RESTART_COUNT": requeues}).communicate(timeout=60)
        assert (tmp_path / "asked").read_text().splitlines()[1:] == ["ganherd", "train", *words]
        (tmp_path / "my runs/x").mkdir(parents=True, exist_ok=True)
        (tmp_path / "my runs/x/run.json").touch()


def test_each_job_of_an_array_has_its_members(tmp_path: Path) -> None:
    environ = site(tmp_path, ends="75") | {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "3"}
    (tmp_path / "runs/digits").mkdir(parents=True)
    (tmp_path / "runs/digits/run.json").touch()  # by another job of the array
    start(tmp_path, script(job(array=10, members_each=10)), environ).communicate(timeout=60)
    words = ["ganherd", "train", "digits-wcgan", "--run", "runs/digits", "--members", "30-39"]
    assert (tmp_path / "asked").read_text().splitlines()[1:] == words
    assert (tmp_path / "requeued").read_text() == "requeue 40_3\n"  # not the whole array


def test_script_is_shown_written_and_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", site(tmp_path)["PATH"])
    assert command("launch", "slurm", "digits-wcgan", "--budget", "9steps", "--dry-run") == 0
    shown = capfd.readouterr().out
    assert "--set=train.budget=9steps" in shown and not list(tmp_path.glob("*.sh"))
    assert command("launch", "slurm", "digits-wcgan", "--budget", "9steps") == 0
    assert capfd.readouterr().out == shown == (tmp_path / "ganherd-digits-wcgan.sh").read_text()
    assert command("launch", "slurm", "digits-wcgan", "--submit") == 0  # its own file may be written again
    assert "Submitted batch job 7" in capfd.readouterr().err
    (tmp_path / "mine.sh").write_text("echo mine")
    assert command("launch", "slurm", "digits-wcgan", "-o", "mine.sh") == 2
    assert (tmp_path / "mine.sh").read_text() == "echo mine" and MARK in shown


def test_a_run_with_other_settings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command that writes the script refuses it, and so does the job: another run may have begun in the meantime."""
    monkeypatch.chdir(tmp_path)
    settings = ["ring8-gan", "--set", "run.scores=false", "--set", "data.points=200", "--budget", "2steps"]
    assert command("train", *settings, "--run", "runs/ring8-gan", "--quiet") == 0
    assert command("launch", "slurm", *settings) == 0
    assert "runs/ring8-gan exists, and the job resumes it" in capfd.readouterr().err
    for words in (["launch", "slurm", *settings], ["train", *settings, "--resume", "runs/ring8-gan"]):
        assert command(*words, "--set", "optim.lr_g=1e-2") == 2
        assert "optim.lr_g: 0.0003 -> 0.01" in capfd.readouterr().err


def test_a_script_resumes_a_run_of_two_phases_and_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second phase keeps its part of the budget, and settings of the first phase and relative paths are not refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "first.yaml").write_text("extends: ring8-gan\ndata: {points: 200}\nrun: {scores: false}\n")
    two = "extends: first.yaml\nherd: {members: 2, first: {recipe: first.yaml, share: 0.5}}\n"
    (tmp_path / "two.yaml").write_text(two)
    words = ["train", "two.yaml", "--set=train.budget=6steps", "--set=herd.first.share=0.5", "--quiet"]
    assert command(*words, "--run", "run") == 0
    before = (tmp_path / "run/recipe.yaml").read_text()
    assert command(*words, "--resume", "run") == 0
    assert RunFolder(tmp_path / "run").info.step == 3 and (tmp_path / "run/recipe.yaml").read_text() == before
    started = ["train", "first.yaml", "--set=herd.start_from=run-first", "--set=train.budget=2steps", "--quiet"]
    assert command(*started, "--run", "other") == 0
    assert command(*started, "--resume", "other") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--time", "soon"], "--time soon: write 90m, 12h"),
        (["--time", "1m"], "not longer than the 120 seconds of --notice"),
        (["digits-cellular-3x3", "--array", "3"], "--array is for herds of one seed whose members never meet"),
        (["--launcher", "rsh"], "there is no launcher 'rsh': choose srun, mpiexec or torchrun"),
        (["--module", "a; rm b"], "--module 'a; rm b' is not a valid name"),
        (["--partition", "a b"], "--partition 'a b' is not a valid name"),
        (["--set", "train.bacth=3"], "did you mean 'train.batch'?"),
        (["--resume", "nowhere"], "there is no run folder nowhere"),
        (["--resume", "@last"], "@last is the newest run in"),
        (["ring8", "--resume", "nowhere"], "leave the recipe and --run out"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("launch", "slurm", *words) == 2
    assert sentence in capfd.readouterr().err and not list(tmp_path.iterdir())


def test_times_are_those_of_slurm() -> None:
    assert [slurm_time(text) for text in ("30", "1:00:00", "2-0", "45m")] == ["30", "1:00:00", "2-0", "0:45:00"]
