"""Read and write safetensors: one file, or several with an index."""

import pathlib
from collections.abc import Mapping

import numpy as np
import safetensors.numpy

from bertjax.errors import UserError
from bertjax.io.files import read_json

WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a folder, by name, with the types of the file.

    Raises:
      UserError: there are no arrays, or a file is damaged.
    """
    if (folder / WEIGHTS).is_file():
        return _read_file(folder / WEIGHTS)
    if not (folder / _INDEX).is_file():
        raise UserError(_no_weights(folder))
    files = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(files, dict):
        raise UserError(f"{folder / _INDEX} has no weight_map: restore it from its source")
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(set(files.values())):
        arrays |= _read_file(folder / file)
    missing = [name for name in files if name not in arrays]
    if missing:
        raise UserError(
            f"{files[missing[0]]} lacks {missing[0]}, which {folder / _INDEX} lists: restore both "
            "from their source"
        )
    return arrays


def write(folder: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one file with the format of transformers and the permissions of the folder."""
    safetensors.numpy.save_file(dict(arrays), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(folder.stat().st_mode & 0o666)


def _read_file(path: pathlib.Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it from the source of the folder")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}): copy it again") from None


def _no_weights(folder: pathlib.Path) -> str:
    pickled = next((name for name in _PICKLED if (folder / name).is_file()), None)
    if pickled is None:
        return f"{folder} has no {WEIGHTS}: expected a folder that save_pretrained wrote"
    return (
        f"weights of {folder}: got {pickled}, expected {WEIGHTS}; load the model with transformers "
        "and save it with save_pretrained"
    )
