"""The two ways a command ends other than well: the user's input, or an interruption that can be resumed."""

from __future__ import annotations


class UserError(Exception):
    """Bad input. The message is one clear sentence that says what to do; the command exits 2."""


class Interrupted(Exception):
    """The run stopped before its end and can go on. The message names the command that resumes it; exit 75."""
