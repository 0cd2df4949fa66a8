"""Load plug-ins by name: a name in a config is a module, or a package, in a folder.

`load("models", "bert")` imports `bertjax/models/bert.py`, and `load("tasks", "glue", "head")`
imports `bertjax/tasks/glue/head.py`. To add a model or an objective, add a file; to add a task, add
a folder. There is no registry.
"""

import importlib
import pathlib
from types import ModuleType

from bertjax.errors import UserError, nearest


def names(folder: str, part: str | None = None) -> list[str]:
    """Lists the plug-ins of a folder: the names that a config may use.

    Args:
      folder: A folder of `bertjax/`.
      part: None lists the modules of the folder; a module name lists the subfolders with it.
    """
    directory = pathlib.Path(__file__).parent / folder
    if part is not None:
        return sorted(path.parent.name for path in directory.glob(f"*/{part}.py"))
    return sorted(path.stem for path in directory.glob("*.py") if not path.stem.startswith("_"))


def load(folder: str, name: str, part: str | None = None) -> ModuleType:
    """Imports `bertjax/<folder>/<name>.py`, or `bertjax/<folder>/<name>/<part>.py`.

    Raises:
      UserError: the name is unknown; the message suggests the nearest.
    """
    known = names(folder, part)
    if name not in known:
        raise UserError(f"no {name!r} in bertjax/{folder}/: {nearest(name, known)}")
    parts = ["bertjax", *folder.split("/"), name, *([part] if part else [])]
    return importlib.import_module(".".join(parts))
