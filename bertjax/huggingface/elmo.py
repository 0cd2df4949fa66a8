"""Read ELMo as released: `options.json` and `lm_weights.hdf5`.

read  folder -> Released: the fields of our model, and our parameters of their arrays
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

_SHOWN = 8

_ACTIVATIONS = ("relu", "tanh")
"""Of the filters: the published code has no others."""


@dataclasses.dataclass(frozen=True)
class Released:
    """A model of theirs.

    Attributes:
      options: Their `options.json`.
      arrays: By name, as in the file.
    """

    options: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def is_released(folder: pathlib.Path) -> bool:
    """Whether a folder holds an ELMo model: files of a hub have longer names."""
    return bool(_found(folder, "options.json"))


def read(folder: pathlib.Path) -> Released:
    """Reads a folder with one `*options.json` and one `*weights.hdf5`.

    Raises:
      UserError: a file is missing or damaged, or there are several.
    """
    path = _only(folder, "options.json")
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    return Released(options, _arrays(_only(folder, "weights.hdf5")))


def fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of our model.

    Raises:
      UserError: an option is missing, or our model cannot be what it says.
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
        raise UserError(f"options.json is no description of an ELMo model: {error!r}") from None
    if found["hidden_act"] not in _ACTIVATIONS:
        raise UserError(
            f"options.json: got char_cnn.activation={found['hidden_act']!r}, expected one of "
            f"{', '.join(_ACTIVATIONS)}; restore it from its source"
        )
    return found | {"initializer_range": 0.02}


def parameters(
    released: Released, shapes: Mapping[str, Shape], source: pathlib.Path
) -> dict[str, np.ndarray]:
    """Our parameters by name.

    Args:
      released: A model of theirs.
      shapes: Of ours.
      source: Where it lies.

    Raises:
      UserError: the options do not fit the weights; a table lists what differs.
    """
    arrays, ours, wrong = dict(released.arrays), {}, []
    for theirs, wanted, parts in _places(fields(released.options)):
        array = arrays.pop(theirs, None)
        if array is None or array.shape != wanted:
            came = "nothing" if array is None else array.shape
            wrong.append(f"  {theirs}  came {came}, expected {wanted}")
            continue
        pieces = np.split(np.asarray(array, np.float32), len(parts))
        pairs = zip(parts, pieces, strict=True)
        ours |= {name: piece.reshape(shapes[name]) for name, piece in pairs}
    wrong += [f"  {name}  came {array.shape}, expected nothing" for name, array in arrays.items()]
    if wrong:
        hidden = [f"  and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        told = f"{source}: options.json does not fit the weights: take both of one model"
        raise UserError("\n".join([told, *wrong[:_SHOWN], *hidden]))
    return ours


def _places(model: Mapping[str, Any]) -> Iterator[tuple[str, Shape, list[str]]]:
    """Each of their arrays: name, shape, and those of ours that lie in it, one below the other."""
    yield from _places_of_words(model)
    width, cells = model["hidden_size"] // 2, model["intermediate_size"]
    for side, direction in enumerate(DIRECTIONS):
        for layer in range(model["num_hidden_layers"]):
            ours = f"encoder/recurrent/{direction}_{layer}"
            theirs = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            # One kernel for the input and, below it, the last output.
            both = [f"{ours}/input/kernel", f"{ours}/recurrent"]
            yield f"{theirs}/W_0", (2 * width, 4 * cells), both
            yield f"{theirs}/B", (4 * cells,), [f"{ours}/input/bias"]
            yield f"{theirs}/W_P_0", (cells, width), [f"{ours}/project"]


def _places_of_words(model: Mapping[str, Any]) -> Iterator[tuple[str, Shape, list[str]]]:
    words, size = "encoder/words", model["char_embedding_size"]
    yield "char_embed", (NUM_CHARACTERS, size), [f"{words}/characters"]
    for index, (width, number) in enumerate(model["filters"]):
        dense = f"{words}/filters_{index}/dense"
        yield f"CNN/W_cnn_{index}", (1, width, size, number), [f"{dense}/kernel"]
        yield f"CNN/b_cnn_{index}", (number,), [f"{dense}/bias"]
    total = sum(number for _, number in model["filters"])
    for layer in range(model["num_highway_layers"]):
        for gate in ("carry", "transform"):
            ours = f"{words}/highway_{layer}/{gate}"
            yield f"CNN_high_{layer}/W_{gate}", (total, total), [f"{ours}/kernel"]
            yield f"CNN_high_{layer}/b_{gate}", (total,), [f"{ours}/bias"]
    out = model["hidden_size"] // 2
    yield "CNN_proj/W_proj", (total, out), [f"{words}/project/kernel"]
    yield "CNN_proj/b_proj", (out,), [f"{words}/project/bias"]


def _found(folder: pathlib.Path, ending: str) -> list[pathlib.Path]:
    return sorted(folder.glob(f"*{ending}"))


def _only(folder: pathlib.Path, ending: str) -> pathlib.Path:
    found = _found(folder, ending)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{folder}: expected one file *{ending}, found {names}")
    return found[0]


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        import h5py
    except ImportError:
        raise UserError(f"{path}: reading it needs h5py: pip install 'bertjax[elmo]'") from None
    arrays: dict[str, np.ndarray] = {}

    def take(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset):
            arrays[name] = np.asarray(thing)

    try:
        with h5py.File(path) as file:
            file.visititems(take)
    except OSError as error:
        raise UserError(f"{path} is no HDF5 file, or damaged: {error}") from None
    return arrays
