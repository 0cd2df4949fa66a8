"""Recipes of a suite: the configs of its file, which its folder records for all tasks.

A folder belongs to one set of recipes, while calls may differ in the tasks that they run.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.io.files import read_json

RECIPES = "recipes"
"""Field of the record of a suite: the config of each task."""


def read_recipes(specs: Mapping[str, str]) -> dict[str, Any]:
    """The configs of tasks as plain values, without overrides and without tasks the file lacks.

    Args:
      specs: For each task a file of configs with its argument; see `config.load_config`.
    """
    found = {}
    for task, spec in specs.items():
        try:
            config = configs.load_config(spec)
        except UserError:
            continue
        found[task] = json.loads(configs.to_json(config))
    return found


def new_recipes(folder: pathlib.Path, record: Mapping[str, Any]) -> list[str]:
    """Patterns of recipes that the folder of a suite has not recorded, as of an older version.

    Args:
      folder: The folder, which may be absent.
      record: Content of `config.json`: the settings by name of the suite.
    """
    path = folder / "config.json"
    stored = read_json(path) if path.exists() else {}
    return [
        f"{suite}.{RECIPES}.{task}.*"
        for suite, content in record.items()
        for task in content[RECIPES]
        if task not in stored.get(suite, {}).get(RECIPES, {})
    ]
