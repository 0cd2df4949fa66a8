"""Files in which predictions are handed on: each is there whole, or as it was."""

import pathlib

from bertjax.data.shards import write_whole
from bertjax.errors import UserError


def write(path: pathlib.Path, text: str) -> None:
    """Writes a file and makes the folders above it.

    Raises:
      UserError: the disk is full, or may not be written; what stood there stands there still.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}; mend that and run the same command "
            "again: finished files and checkpoints are kept"
        ) from error
