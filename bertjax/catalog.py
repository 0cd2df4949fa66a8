"""Find plug-ins and configs by name: a name is a module, or a package, in a folder.

`load("models", "bert")` imports `bertjax/models/bert.py`, and `load("tasks", "glue", "head")`
imports `bertjax/tasks/glue/head.py`. To add a model or an objective, add a file; to add a task, add
a folder. There is no registry.
"""

import contextlib
import functools
import importlib
import importlib.machinery
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from bertjax.errors import UserError, nearest

_CONFIGS = "configs"

_RENAMED_CONFIGS = {"t5": "span_corruption", "bart": "text_infilling", "mass": "masked_seq2seq"}
"""Former names of configs -> the names in use, those of the objectives."""

RENAMED_FIELDS = {"objectives.soft_targets.begin_from_teacher": "init_from_teacher"}
"""Former names of config fields, in runs of older versions -> the names in use."""


def names(folder: str, part: str | None = None) -> list[str]:
    """Lists the plug-ins of a folder: the names that a config may use.

    Args:
      folder: A folder of `bertjax/`.
      part: None lists the modules of the folder; a module name lists the subfolders with it.
    """
    return list(_names(folder, part))


@functools.cache  # the check of a config looks up hundreds of names
def _names(folder: str, part: str | None) -> tuple[str, ...]:
    directory = pathlib.Path(__file__).parent / folder
    if part is not None:
        return tuple(sorted(path.parent.name for path in directory.glob(f"*/{part}.py")))
    stems = (path.stem for path in directory.glob("*.py"))
    return tuple(sorted(stem for stem in stems if not stem.startswith("_")))


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


def find_named(items: Iterable[Any], name: str, kind: str) -> Any:
    """Finds an item, such as a task of a benchmark, by its attribute `name`.

    Args:
      items: The items.
      name: The name.
      kind: Noun for an item in the message, such as "task".

    Raises:
      UserError: the name is unknown; the message suggests the nearest.
    """
    by_name = {item.name: item for item in items}
    if name not in by_name:
        raise UserError(f"unknown {kind} {name!r}: {nearest(name, by_name)}")
    return by_name[name]


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


def rename_fields(config: Any) -> Any:
    """Replaces former names of fields in the content of a run's `config.json`, in place."""
    for field, new in RENAMED_FIELDS.items():
        *sections, former = field.split(".")
        section = config
        for name in sections:
            section = section.get(name) if isinstance(section, dict) else None
        if isinstance(section, dict) and former in section:
            section[new] = section.pop(former)
    return config


def _nearest_file(path: pathlib.Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    names = [sibling.name for sibling in path.parent.glob(f"*{path.suffix}")]
    return nearest(path.name, names) if names else f"no {path.suffix} file in {path.parent}"


@contextlib.contextmanager
def importable(path: pathlib.Path) -> Iterator[None]:
    """Makes `from configs import common` work in any config file.

    `configs` has the files of bertjax and, before them, those of a folder of that name in which the
    config file or its folder lies. The imported modules are removed afterwards: another folder may
    have files of the same names. A folder of config files has no `__init__.py`.
    """
    folder = path.resolve().parent
    shipped = list({str(file.parent): file for file in config_files().values()})
    before, known, dont_write_bytecode = list(sys.path), set(sys.modules), sys.dont_write_bytecode
    own = {name: sys.modules.pop(name) for name in known if name.partition(".")[0] == _CONFIGS}
    # The parent of a wheel's configs is bertjax/, whose modules must not be found as top-level
    # ones: `import tokenizers` means the library.
    is_in_wheel = str(folder) in shipped and (folder.parent / "__init__.py").is_file()
    sys.path[:0] = [str(folder)] if is_in_wheel else [str(folder), str(folder.parent)]
    # Bytecode of a file is used until its size or the second of its change differs.
    sys.dont_write_bytecode = True
    sys.modules[_CONFIGS] = ModuleType(_CONFIGS)
    sys.modules[_CONFIGS].__path__ = shipped if is_in_wheel else [*_folders_on_path(), *shipped]
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = before, dont_write_bytecode
        for name in set(sys.modules) - (known - own.keys()):
            top = name.partition(".")[0]
            if top == _CONFIGS or _is_config_module(folder, top):
                sys.modules.pop(name, None)
        sys.modules.update(own)


def _folders_on_path() -> list[str]:
    """Returns the folders `configs` of `sys.path`."""
    spec = importlib.machinery.PathFinder.find_spec(_CONFIGS)
    return list(spec.submodule_search_locations or ()) if spec else []


def _is_config_module(folder: pathlib.Path, name: str) -> bool:
    """Whether a module is a file or a folder of files next to a config file."""
    places = (folder / name, folder.parent / name)
    is_folder = any(place.is_dir() and not (place / "__init__.py").exists() for place in places)
    return is_folder or (folder / f"{name}.py").is_file()
