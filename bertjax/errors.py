"""Errors that the user can fix, and interruptions: one clear line, no traceback.

The text of a `UserError` is `<what is wrong>: got <value>, expected <constraint>; <what to do>`.
`cli.py` prints it and exits with its status, 2; every other exception is a defect of bertjax and
keeps its traceback.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class UserError(Exception):
    """An error that the user can fix; its text is one line.

    Attributes:
      exit_status: Exit status of a command.
    """

    exit_status: ClassVar[int] = 2


class TemporaryError(UserError):
    """A failure of other machines, after which the same command may succeed, unchanged.

    Its exit status is EX_TEMPFAIL of sysexits.h: launchers that restart a job a limited number of
    times do so, which they do not after status 2.
    """

    exit_status = 75


class Interrupted(KeyboardInterrupt):
    """A run or a sweep saved and stopped on Ctrl-C or SIGTERM; the same call resumes it.

    Attributes:
      exit_code: 128 + the signal's number, as shells report it.
    """

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error about an unknown name: the nearest known name, or all names."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
