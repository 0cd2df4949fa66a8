"""The folder is the table: a name in a config is the name of a module in a folder.

`load("models", "bert")` imports `bertjax/models/bert.py`. Adding a model, an objective or a task is
adding a file; there is nothing to register.
"""

import importlib
import pathlib
from types import ModuleType

from bertjax.errors import UserError, nearest


def names(folder: str) -> list[str]:
    """Lists the modules of `bertjax/<folder>/`, which are the names that a config may use."""
    directory = pathlib.Path(__file__).parent / folder
    return sorted(path.stem for path in directory.glob("*.py") if not path.stem.startswith("_"))


def load(folder: str, name: str) -> ModuleType:
    """Imports `bertjax/<folder>/<name>.py`.

    Raises:
      UserError: there is no such module; the nearest name is given.
    """
    known = names(folder)
    if name not in known:
        raise UserError(f"no {name!r} in bertjax/{folder}/: {nearest(name, known)}")
    return importlib.import_module(f"bertjax.{folder.replace('/', '.')}.{name}")
