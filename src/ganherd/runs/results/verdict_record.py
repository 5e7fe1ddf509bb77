"""The verdict on a run as scores.json holds it: a word, a reason and what to try, for the herd and for each member."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ganherd.runs.models import Count, Record, Text
from ganherd.util import files

Word = Literal["good", "undertrained", "collapsed", "unstable", "memorising", "unlike the data", "cannot be judged"]
VERDICT = "verdict"  # its key in scores.json, next to `scores`
EXIT_CODES = {"good": 0, "cannot be judged": 2}  # of `ganherd check`; every other word is 1


def style_of(word: str) -> str:
    """Return whether a word is "good", a warning ("warn") or "bad", for its colour."""
    return {"good": "good", "undertrained": "warn", "cannot be judged": "warn"}.get(word, "bad")


class MemberVerdict(Record):
    """The verdict on a member, or on a class of a herd whose generators take the label as an input."""

    name: Text
    member: Count | None = None
    replica: Count = 0
    weight: Annotated[float, Field(ge=0, le=1)] | None = None  # its share of the mixture
    word: Word
    reason: Text
    try_next: Text = ""
    evidence: dict[Text, Any] = {}


class VerdictRecord(Record):
    """The verdict on a herd, with those on its members and the evidence for all of them."""

    word: Word
    reason: Text
    try_next: Text = ""
    step: Count | None = None  # of the mixture that was judged
    network: Text = ""  # of the features
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
    """Return the verdict in a scores.json; None if it is missing or damaged. Older versions wrote none."""
    try:
        return VerdictRecord.parse(files.read_json(path)[VERDICT])
    except (OSError, ValueError, KeyError, TypeError):
        return None
