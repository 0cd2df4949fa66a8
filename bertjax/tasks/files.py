"""Locate the files of a task's splits by their usual names or the names in the config."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError


def find(
    folder: str, usual: Mapping[str, Sequence[str]], fields: Mapping[str, Any]
) -> dict[str, pathlib.Path]:
    """Finds the file of each split; the test split is optional.

    Args:
      folder: The folder of the files.
      usual: For each split the names to look for, in order of preference.
      fields: `config.data` with `train_file`, `dev_file` and `test_file`; "" for the usual names.

    Raises:
      UserError: the train or dev file, or a file that the config names, is missing.
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
                f"no {' or '.join(names)} in {folder}: --data expects the folder of the task's "
                f"files; set --config.data.{split}_file=FILE for another name"
            )
    return found
