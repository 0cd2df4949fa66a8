"""Read a released ELMo: `options.json` and `lm_weights.hdf5`.

read  folder -> ReleasedElmo, which `fields` and `parameters` convert to a bertjax model
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.huggingface.name_map import Shape
from bertjax.layers.char_cnn import NUM_CHARACTERS
from bertjax.layers.lstm import DIRECTIONS

_MAX_ROWS = 8

_ACTIVATIONS = ("relu", "tanh")
"""Activations of the convolution; the published code has no others."""


@dataclasses.dataclass(frozen=True)
class ReleasedElmo:
    """A released ELMo.

    Attributes:
      options: The contents of `options.json`.
      arrays: Arrays by their names in the file.
    """

    options: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def is_released(folder: pathlib.Path) -> bool:
    """Whether a folder contains an ELMo; on hubs, its file names have prefixes."""
    return bool(_find_files(folder, "options.json"))


def read(folder: pathlib.Path) -> ReleasedElmo:
    """Reads a folder with one `*options.json` and one `*weights.hdf5`.

    Raises:
      UserError: a file is missing or damaged, or there are several.
    """
    path = _find_one(folder, "options.json")
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    return ReleasedElmo(options, _arrays(_find_one(folder, "weights.hdf5")))


def fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the bertjax model.

    Raises:
      UserError: an option is missing, or has a value that bertjax does not support.
    """
    try:
        lstm, cnn = options["lstm"], options["char_cnn"]
        found = {
            "name": "elmo",
            "hidden_size": 2 * lstm["projection_dim"],
            "num_hidden_layers": int(lstm["n_layers"]),
            "intermediate_size": int(lstm["dim"]),
            "filters": tuple(map(tuple, cnn["filters"])),
            "char_embedding_size": int(cnn["embedding"]["dim"]),
            "num_highway_layers": int(cnn["n_highway"]),
            "max_chars_per_word": int(cnn["max_characters_per_token"]),
            "hidden_act": cnn["activation"],
            "cell_clip": float(lstm.get("cell_clip") or 0),
            "proj_clip": float(lstm.get("proj_clip") or 0),
            "without_skip_connections": not lstm["use_skip_connections"],
            "hidden_dropout_prob": float(options.get("dropout", 0.1)),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"options.json does not describe an ELMo: {error!r}; restore it from its source"
        ) from None
    if found["hidden_act"] not in _ACTIVATIONS:
        raise UserError(
            f"options.json: got char_cnn.activation={found['hidden_act']!r}, expected one of "
            f"{', '.join(_ACTIVATIONS)}; restore it from its source"
        )
    return found | {"initializer_range": 0.02}


def parameters(
    released: ReleasedElmo, shapes: Mapping[str, Shape], source: pathlib.Path
) -> dict[str, np.ndarray]:
    """Converts the arrays to bertjax parameters, by path.

    Args:
      released: The released model.
      shapes: The shapes of the bertjax parameters.
      source: Its folder.

    Raises:
      UserError: the options do not fit the weights; a table lists the differences.
    """
    arrays, params, wrong = dict(released.arrays), {}, []
    for name, expected, paths in _maps(fields(released.options)):
        array = arrays.pop(name, None)
        if array is None or array.shape != expected:
            found = "nothing" if array is None else array.shape
            wrong.append(f"  {name}  got {found}, expected {expected}")
            continue
        pieces = np.split(np.asarray(array, np.float32), len(paths))
        for path, piece in zip(paths, pieces, strict=True):
            params[path] = piece.reshape(shapes[path])
    wrong += [f"  {name}  got {array.shape}, expected nothing" for name, array in arrays.items()]
    if wrong:
        omitted = [f"  and {len(wrong) - _MAX_ROWS} more"] if len(wrong) > _MAX_ROWS else []
        message = f"{source}: options.json does not fit the weights: use both files of one model"
        raise UserError("\n".join([message, *wrong[:_MAX_ROWS], *omitted]))
    return params


def _maps(model: Mapping[str, Any]) -> Iterator[tuple[str, Shape, list[str]]]:
    """Yields name, shape and parameters (concatenated along the first axis) of each array."""
    yield from _char_cnn_maps(model)
    width, cells = model["hidden_size"] // 2, model["intermediate_size"]
    for side, direction in enumerate(DIRECTIONS):
        for layer in range(model["num_hidden_layers"]):
            path = f"encoder/recurrent/{direction}_{layer}"
            cell = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            # One kernel multiplies the concatenation of the input and the previous output.
            both = [f"{path}/input/kernel", f"{path}/recurrent"]
            yield f"{cell}/W_0", (2 * width, 4 * cells), both
            yield f"{cell}/B", (4 * cells,), [f"{path}/input/bias"]
            yield f"{cell}/W_P_0", (cells, width), [f"{path}/project"]


def _char_cnn_maps(model: Mapping[str, Any]) -> Iterator[tuple[str, Shape, list[str]]]:
    words, size = "encoder/words", model["char_embedding_size"]
    yield "char_embed", (NUM_CHARACTERS, size), [f"{words}/characters"]
    for index, (width, number) in enumerate(model["filters"]):
        dense = f"{words}/filters_{index}/dense"
        yield f"CNN/W_cnn_{index}", (1, width, size, number), [f"{dense}/kernel"]
        yield f"CNN/b_cnn_{index}", (number,), [f"{dense}/bias"]
    total = sum(number for _, number in model["filters"])
    for layer in range(model["num_highway_layers"]):
        for gate in ("carry", "transform"):
            path = f"{words}/highway_{layer}/{gate}"
            yield f"CNN_high_{layer}/W_{gate}", (total, total), [f"{path}/kernel"]
            yield f"CNN_high_{layer}/b_{gate}", (total,), [f"{path}/bias"]
    out = model["hidden_size"] // 2
    yield "CNN_proj/W_proj", (total, out), [f"{words}/project/kernel"]
    yield "CNN_proj/b_proj", (out,), [f"{words}/project/bias"]


def _find_files(folder: pathlib.Path, ending: str) -> list[pathlib.Path]:
    return sorted(folder.glob(f"*{ending}"))


def _find_one(folder: pathlib.Path, ending: str) -> pathlib.Path:
    found = _find_files(folder, ending)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(
            f"{folder}: got {names} as *{ending}, expected exactly one; restore or remove files"
        )
    return found[0]


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        import h5py
    except ImportError:
        raise UserError(f"{path}: reading it needs h5py: pip install 'bertjax[elmo]'") from None
    arrays: dict[str, np.ndarray] = {}

    def collect(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            arrays[name] = np.asarray(node)

    try:
        with h5py.File(path) as file:
            file.visititems(collect)
    except OSError as error:
        raise UserError(f"{path} is not an HDF5 file, or damaged: {error}") from None
    return arrays
