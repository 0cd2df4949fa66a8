"""Locate the files of a task's splits, by their usual names or those of the config."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError


def find(
    folder: str, usual: Mapping[str, Sequence[str]], fields: Mapping[str, Any]
) -> dict[str, pathlib.Path]:
    """The file of each split that is there; a test split may be absent.

    Args:
      folder: Where they are.
      usual: Of each split the names to look for, in order of preference.
      fields: `config.data`: `train_file` and so on, empty for the usual names.

    Raises:
      UserError: train or dev is missing, or a file that is named.
    """
    found = {}
    for split, names in usual.items():
        named = fields[f"{split}_file"]
        names = (named,) if named else names
        paths = (pathlib.Path(folder) / name for name in names)
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            found[split] = path
        elif named or split != "test":
            raise UserError(
                f"{folder} has no {' or '.join(names)}: --data requires the folder of the task's "
                f"files, or name yours with --config.data.{split}_file=FILE"
            )
    return found
