"""Read and write safetensors: one file, or several with an index."""

import pathlib
from collections.abc import Mapping
from types import ModuleType

import numpy as np

from bertjax.errors import UserError
from bertjax.io.files import read_json

WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of a folder by name, of the types that they have there.

    Raises:
      UserError: there are none, or a file is damaged.
    """
    if (folder / WEIGHTS).is_file():
        return _read_file(folder / WEIGHTS)
    if not (folder / _INDEX).is_file():
        raise UserError(_absence(folder))
    files = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(files, dict):
        raise UserError(f"{folder / _INDEX} has no weight_map: restore it from where it came")
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(set(files.values())):
        arrays |= _read_file(folder / file)
    lost = [name for name in files if name not in arrays]
    if lost:
        raise UserError(f"{folder / _INDEX} names {lost[0]}, which is not in {files[lost[0]]}")
    return arrays


def write(folder: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one file, as transformers does, that others may read."""
    _library().numpy.save_file(dict(arrays), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(folder.stat().st_mode & 0o666)


def _read_file(path: pathlib.Path) -> dict[str, np.ndarray]:
    library = _library()
    if not path.is_file():
        raise UserError(f"{path} is missing: copy it from where the folder came")
    try:
        with library.safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except library.SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}): copy it anew") from None


def _absence(folder: pathlib.Path) -> str:
    pickled = next((name for name in _PICKLED if (folder / name).is_file()), None)
    if pickled is None:
        return f"{folder} has no {WEIGHTS}: expected a folder that save_pretrained wrote"
    return (
        f"{folder} has its weights in {pickled} only: load it with transformers and save it with "
        f"save_pretrained, which writes {WEIGHTS}"
    )


def _library() -> ModuleType:
    try:
        import safetensors.numpy
    except ModuleNotFoundError:
        raise UserError(
            "exchange with Hugging Face needs safetensors: pip install 'bertjax[hf]', or pip "
            "install safetensors"
        ) from None
    return safetensors
