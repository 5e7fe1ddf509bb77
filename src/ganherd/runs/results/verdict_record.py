"""The verdict on a run in scores.json: a word, a reason and what to try, for the herd and for each member."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ganherd.runs.models import Count, Record, Text
from ganherd.util import files

Word = Literal["good", "undertrained", "collapsed", "unstable", "memorising", "unlike the data", "cannot be judged"]
VERDICT = "verdict"  # the key in scores.json that holds the verdict, next to `scores`
EXIT_CODES = {"good": 0, "cannot be judged": 2}  # exit codes of `ganherd check`; 1 for every other word


def style_of(word: str) -> str:
    """Return the style in which the word of a verdict is shown: "good", "warn" or "bad"."""
    return {"good": "good", "undertrained": "warn", "cannot be judged": "warn"}.get(word, "bad")


class MemberVerdict(Record):
    """The verdict on one member. If generators take the label as an input, it is the verdict on one class instead."""

    name: Text
    member: Count | None = None
    replica: Count = 0
    weight: Annotated[float, Field(ge=0, le=1)] | None = None  # its share of the mixture
    word: Word
    reason: Text
    try_next: Text = ""
    evidence: dict[Text, Any] = {}


class VerdictRecord(Record):
    """The verdict on a herd, with those on its members, and the numbers that they are based on (`evidence`)."""

    word: Word
    reason: Text
    try_next: Text = ""
    step: Count | None = None  # the step of the mixture that was judged
    network: Text = ""  # the network that computed the features
    evidence: dict[Text, Any] = {}
    members: list[MemberVerdict] = []

    @property
    def exit_code(self) -> int:
        """Return the exit code of `ganherd check`: 0 good, 1 not good, 2 it cannot be judged."""
        return EXIT_CODES.get(self.word, 1)

    @property
    def sentence(self) -> str:
        """Return the verdict in one line: the word, the reason, and what to try.

        >>> VerdictRecord(word="collapsed", reason="its samples hardly vary", try_next="try a lower optim.lr_g").sentence
        'collapsed: its samples hardly vary; try a lower optim.lr_g.'
        """
        advice = f"; {self.try_next}" if self.try_next else ""
        return f"{self.word}: {self.reason}{advice}."

    def for_run(self, again: str) -> VerdictRecord:
        """Return the verdict with a command that can be copied wherever it advises to resume the run.

        Args:
            again: The command that resumes this run.

        >>> longer = "train longer, for example: ganherd train --resume RUN --budget +1000steps"
        >>> record = VerdictRecord(word="undertrained", reason="its samples hardly vary", try_next=longer)
        >>> record.for_run("ganherd train --resume runs/a").try_next
        'train longer, for example: ganherd train --resume runs/a --budget +1000steps'
        """
        members = [one.model_copy(update={"try_next": _advice(one.try_next, again)}) for one in self.members]
        return self.model_copy(update={"try_next": _advice(self.try_next, again), "members": members})

    def of_member(self, member: int, replica: int = 0) -> MemberVerdict | None:
        """Return the verdict on a member; None if it was not judged."""
        return next((one for one in self.members if (one.member, one.replica) == (member, replica)), None)


def _advice(text: str, again: str) -> str:
    return text.replace("ganherd train --resume RUN", again)


def read_verdict(path: Path) -> VerdictRecord | None:
    """Return the verdict in a scores.json; None if it is damaged or missing, as in files of older versions."""
    try:
        return VerdictRecord.parse(files.read_json(path)[VERDICT])
    except (OSError, ValueError, KeyError, TypeError):
        return None
