"""Find plug-ins and configs by name: a name is a module, or a package, in a folder.

`load("models", "bert")` imports `bertjax/models/bert.py`, and `load("tasks", "glue", "head")`
imports `bertjax/tasks/glue/head.py`. To add a model or an objective, add a file; to add a task, add
a folder. There is no registry.
"""

import importlib
import pathlib
import re
from types import ModuleType

from bertjax.errors import UserError, nearest

_RENAMED_CONFIGS = {"t5": "span_corruption", "bart": "text_infilling", "mass": "masked_seq2seq"}
"""Configs that were named for a model, and are its objective on the Transformer."""


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


def config_files() -> dict[str, pathlib.Path]:
    """Returns the files of `configs/` by name; in a wheel they are in `bertjax/configs`."""
    package = pathlib.Path(__file__).parent
    folders = package / "configs", package.parent / "configs"
    folder = next((folder for folder in folders if (folder / "quickstart.py").is_file()), None)
    paths = sorted(folder.glob("*.py")) if folder else []
    return {path.stem: path for path in paths}


def find_config_file(spec: str, kinds: tuple[str, ...]) -> tuple[pathlib.Path, str | None]:
    """Finds a config file, and the argument of its `get_config`.

    Args:
      spec: The name of a config of bertjax, such as "bert", or a path; each with an argument after
        a colon, as in "bert:base" or "configs/bert.py:base".
      kinds: Suffixes of paths.

    Raises:
      UserError: there is no such file; the message suggests the nearest.
    """
    endings = "|".join(map(re.escape, kinds))
    match = re.fullmatch(rf"(.+?(?:{endings}))(?::(.*))?", spec)
    shipped = config_files()
    if not match:
        name, colon, argument = spec.partition(":")
        if name in shipped:
            return shipped[name], argument if colon else None
        if name in _RENAMED_CONFIGS:
            raise UserError(f"--config: {name} is now {_RENAMED_CONFIGS[name]}")
        run = ", or a run's config.json" if ".json" in kinds else ""
        raise UserError(
            f"--config: got {spec!r}, expected the name of a config, as in bert:tiny "
            f"({nearest(name, shipped)}), or a Python file{run}"
        )
    path = pathlib.Path(match[1])
    if not path.is_file():
        if path.parent == pathlib.Path("configs") and path.stem in shipped:
            return shipped[path.stem], match[2]
        if path.parent == pathlib.Path("configs") and path.stem in _RENAMED_CONFIGS:
            raise UserError(f"--config: {path} is now {_RENAMED_CONFIGS[path.stem]}")
        raise UserError(f"no config file {path}: {_nearest_file(path)}")
    return path, match[2]


def _nearest_file(path: pathlib.Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    names = [sibling.name for sibling in path.parent.glob(f"*{path.suffix}")]
    return nearest(path.name, names) if names else f"no {path.suffix} file in {path.parent}"
