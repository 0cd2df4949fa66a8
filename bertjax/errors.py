"""Errors that the user can fix: one clear line, no traceback.

A `UserError` says what came, what was expected and what to do. `cli.py` prints it and exits with
code 2; everything else that is raised is a defect of bertjax and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can fix; its text is the one line that they read."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Ends an error about an unknown name: the nearest known one, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
