"""Archive of the prediction files of a suite for the evaluation server of a benchmark."""

import pathlib
import zipfile
from collections.abc import Sequence

from bertjax.sweeps.run import Score


def write(path: pathlib.Path, scores: Sequence[Score], names: Sequence[str]) -> None:
    """Writes the files that finished runs have into one archive.

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
