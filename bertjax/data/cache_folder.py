"""Where lies what several runs of a person share, and anybody may delete: `~/.cache/bertjax`."""

import os
import pathlib

ENVIRONMENT = "BERTJAX_CACHE"
"""Names another folder."""


def directory(named: str = "") -> pathlib.Path:
    """The folder: the one named, else the environment's, else the user's."""
    home = pathlib.Path.home() / ".cache" / "bertjax"
    return pathlib.Path(named or os.environ.get(ENVIRONMENT) or home)
