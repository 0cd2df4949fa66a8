"""Plug-ins by name: a name in a config is the name of a module, or of a package, in a folder.

`load("models", "bert")` imports `bertjax/models/bert.py`, and `load("tasks", "glue", "head")`
imports `bertjax/tasks/glue/head.py`. To add a model or an objective, add a file; to add a task, add
a folder. There is no registry.
"""

import importlib
import pathlib
from types import ModuleType

from bertjax.errors import UserError, nearest


def names(folder: str, part: str | None = None) -> list[str]:
    """Lists the names that a config may use.

    Args:
      folder: A folder of `bertjax/`.
      part: None lists its modules; the name of a module lists the subfolders that contain it.
    """
    directory = pathlib.Path(__file__).parent / folder
    if part is not None:
        return sorted(path.parent.name for path in directory.glob(f"*/{part}.py"))
    return sorted(path.stem for path in directory.glob("*.py") if not path.stem.startswith("_"))


def load(folder: str, name: str, part: str | None = None) -> ModuleType:
    """Imports `bertjax/<folder>/<name>.py`, or `bertjax/<folder>/<name>/<part>.py`.

    Raises:
      UserError: there is no such module; the nearest name is given.
    """
    known = names(folder, part)
    if name not in known:
        raise UserError(f"no {name!r} in bertjax/{folder}/: {nearest(name, known)}")
    parts = ["bertjax", *folder.split("/"), name, *([part] if part else [])]
    return importlib.import_module(".".join(parts))
