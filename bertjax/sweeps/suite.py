"""What suites share: the recorded recipes of their tasks, and the archive for a test server.

The folder of a suite records the configs of all tasks in its config file. It belongs to one set of
recipes, while calls may differ in the tasks that they run.
"""

import json
import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.io.files import read_json
from bertjax.sweeps.run import Score

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


def write_submission(path: pathlib.Path, scores: Sequence[Score], names: Sequence[str]) -> None:
    """Writes the prediction files of finished runs into an archive for the evaluation server.

    Args:
      path: The archive.
      scores: The finished runs.
      names: File names in their order in the archive.
    """
    files = _prediction_files(scores)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in filter(files.get, names):
            archive.write(files[name], name)


def missing_files(scores: Sequence[Score], names: Sequence[str]) -> list[str]:
    """Lists the prediction files that no finished run has written."""
    files = _prediction_files(scores)
    return [name for name in names if name not in files]


def _prediction_files(scores: Sequence[Score]) -> dict[str, pathlib.Path]:
    folders = [score.workdir / "predictions" / "test" for score in scores]
    return {path.name: path for folder in folders for path in folder.glob("*.*")}
