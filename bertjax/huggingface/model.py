"""Read and write Hugging Face model folders: `config.json` and `model.safetensors`.

read     folder -> HFModel: the Hugging Face config, and the arrays by their canonical names
write    HFModel -> folder

Arrays are read from one safetensors file, or from several with an index; with PyTorch, also from
`pytorch_model.bin`.
"""

import dataclasses
import pathlib
import pickle
import re
import tempfile
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import safetensors.numpy

from bertjax.errors import UserError
from bertjax.huggingface import architecture as architectures
from bertjax.huggingface.architecture import ENCODER, attribute, is_task, task_of
from bertjax.io.files import read_json, write_hf_json
from bertjax.layers.dense import activation

_TASKS_WITHOUT_CLASS = ("glue", "squad")
"""The heads of tasks in a file whose config names no class: three heads share the array names of a
classifier, and the config alone distinguishes them."""

_BUFFERS = (
    *("embeddings.position_ids", "embeddings.token_type_ids"),
    *(".attn.bias", ".attn.masked_bias"),
)
"""Constants that older releases save among the weights."""

_LEGACY_NAMES = {"gamma": "weight", "beta": "bias"}
"""Names of LayerNorm parameters in files converted from TensorFlow."""

WEIGHTS, _PICKLED = "model.safetensors", "pytorch_model.bin"
"""The first is read if a folder has both; either may be several files, with an index."""


@dataclasses.dataclass(frozen=True)
class HFModel:
    """A Hugging Face model.

    Attributes:
      model_type: Its architecture.
      config: The `config.json`.
      arrays: Arrays by name; names begin with the architecture's prefix, with heads or without.
      dtype: The one type of all arrays in the file, float32 if there are several.
      code_names: Fields in place of those of `config` when it is written, None for absent ones: the
        names of types and classes in the code of an imported folder.
    """

    model_type: str
    config: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    dtype: str
    code_names: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> "HFModel":
        """Builds a model from its config and arrays, which may have names of older releases.

        Raises:
          UserError: an unknown architecture, or two arrays differ that bertjax shares.
        """
        model_type = _type_by_arrays(arrays) or _known_type(config)
        architecture = architectures.load(model_type)
        buffers = (*_BUFFERS, *attribute(architecture, "BUFFERS"))
        kept = {name: array for name, array in arrays.items() if not name.endswith(buffers)}
        types = {array.dtype.name for array in kept.values()}
        named = _canonical(kept, architecture)
        return cls(model_type, config, named, types.pop() if len(types) == 1 else "float32")

    @property
    def architecture(self) -> ModuleType:
        """The architecture of this `model_type`."""
        return architectures.load(self.model_type)

    @property
    def parts(self) -> list[str]:
        """The parts of the bertjax parameters that the arrays contain; always the encoder.

        Heads may share arrays: a head is absent if another head has all of its arrays in the file
        and more.
        """
        parts, tasks = self.architecture.parts(), self._tasks
        found = {
            part: {each.hf for each in maps if each.is_in(self.arrays)}
            for part, maps in parts.items()
            if not is_task(part) or part in tasks
        }
        return [
            part
            for part, names in found.items()
            if part == ENCODER
            or not parts[part]
            or (names and not any(names < others for others in found.values()))
        ]

    @property
    def _tasks(self) -> Collection[str]:
        """The tasks whose heads may be in the file: that of the class, if the config names one."""
        heads = {name: heads for heads, name in self.architecture.CLASSES.items()}
        named = [heads.get(name, ()) for name in self.config.get("architectures") or ()]
        return next((found for found in named if task_of(found)), _TASKS_WITHOUT_CLASS)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the bertjax model."""
        return self.architecture.fields(self.config, self.parts)

    def head_fields(self, head: str) -> dict[str, Any]:
        """The fields of the objective that corresponds to a head."""
        act = attribute(self.architecture, "HEAD_ACT").get(head)
        if act is None:
            return {}
        default = self.fields.get(attribute(self.architecture, "ACT_FIELD"))
        same = default is not None and activation(act) is activation(default)
        return {} if same else {"hidden_act": act}

    def without(self, part: str) -> "HFModel":
        """The same model without the arrays of a part that has no layers."""
        names = {each.hf for each in self.architecture.parts()[part]}
        arrays = {name: array for name, array in self.arrays.items() if name not in names}
        return dataclasses.replace(self, arrays=arrays)


def read(folder: pathlib.Path) -> HFModel:
    """Reads a folder that `save_pretrained` wrote.

    Raises:
      UserError: there is no such model, its architecture is unknown, or a file is damaged.
    """
    if not folder.is_dir():
        raise UserError(
            f"no folder {folder}: models are read from disk; `hf download NAME --local-dir "
            f"{folder}` downloads one from the hub"
        )
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} has no config.json: expected a folder that save_pretrained wrote"
        )
    config = read_json(folder / "config.json")
    if not _has_arrays(folder) and "auto_map" not in config:
        _known_type(config)  # other weights would not help
    found = HFModel.of(config, read_arrays(folder))
    code = "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.py")))
    added = attribute(found.architecture, "fields_of_code")(code)
    return dataclasses.replace(found, config={**added, **config})


def write(folder: pathlib.Path, released: HFModel) -> None:
    """Writes the two files; without heads, names have no prefix, as in transformers."""
    architecture, dtype = released.architecture, released.dtype
    arrays = {n: array.astype(dtype, copy=False) for n, array in released.arrays.items()}
    arrays |= attribute(architecture, "constants")(released.config)
    prefix = architectures.prefix(architecture)
    bare = released.config["architectures"] == [architecture.CLASSES[()]]
    if not bare and attribute(architecture, "REMOTE_CODE"):
        # Transformers initialises missing arrays anew where a class does not declare tied weights.
        tied = attribute(architecture, "TIED_ARRAYS")
        arrays |= {name: arrays[original].copy() for name, original in tied.items()}
    if bare and all(name.startswith(prefix) for name in arrays):
        arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    names = released.code_names
    config = {**released.config, **names}
    absent = [word for word in names if names[word] is None]
    write_hf_json(folder / "config.json", {w: config[w] for w in config if w not in absent})
    write_arrays(folder, arrays)


def _known_type(config: Mapping[str, Any]) -> str:
    model_type, known = config.get("model_type"), architectures.names()
    if model_type not in known:
        raise UserError(
            f"model_type of config.json: got {model_type!r}, expected one of {', '.join(known)}; "
            "bertjax has no other architectures of transformers"
        )
    return model_type


def _type_by_arrays(names: Collection[str]) -> str | None:
    """The architecture with remote code that has most of these arrays; None if none has any."""
    scores = {}
    for model_type in architectures.names():
        architecture = architectures.load(model_type)
        if attribute(architecture, "REMOTE_CODE"):
            named, maps = _with_prefix(names, architecture), architecture.parts()[ENCODER]
            scores[model_type] = sum(each.is_in(named) for each in maps)
    best = max(scores, key=lambda model_type: scores[model_type])
    return best if scores[best] else None


def _with_prefix(names: Collection[str], architecture: ModuleType) -> list[str]:
    """The names in a model with heads."""
    prefix = architectures.prefix(architecture)
    has_prefix = any(name.startswith(prefix) for name in names)
    return [name if has_prefix else prefix + name for name in names]


def _canonical(arrays: Mapping[str, np.ndarray], architecture: ModuleType) -> dict[str, np.ndarray]:
    """The arrays by current names with the prefix, without those that repeat another one."""
    named = {
        re.sub(r"[^.]+$", lambda word: _LEGACY_NAMES.get(word[0], word[0]), name): array
        for name, array in arrays.items()
    }
    named = dict(zip(_with_prefix(named, architecture), named.values(), strict=True))
    for name, original in attribute(architecture, "TIED_ARRAYS").items():
        if name not in named:
            continue
        repeated = named.pop(name)
        if not np.array_equal(repeated, named.setdefault(original, repeated)):
            raise UserError(
                f"{name} differs from {original}: bertjax shares the two; tie_weights() of "
                "transformers makes them one"
            )
    return named


def read_arrays(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a folder, by name, with the types of the file.

    Raises:
      UserError: there are no arrays, or a file is damaged.
    """
    for name, read_file in ((WEIGHTS, _read_file), (_PICKLED, _read_pickled)):
        if (folder / name).is_file():
            return read_file(folder / name)
        if _index(folder, name).is_file():
            return _read_parts(_index(folder, name), read_file)
    raise UserError(f"{folder} has no {WEIGHTS}: expected a folder that save_pretrained wrote")


def _has_arrays(folder: pathlib.Path) -> bool:
    names = WEIGHTS, _PICKLED
    return any((folder / name).is_file() or _index(folder, name).is_file() for name in names)


def _index(folder: pathlib.Path, name: str) -> pathlib.Path:
    return folder / f"{name}.index.json"


def _read_parts(
    index: pathlib.Path, read_file: Callable[[pathlib.Path], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict):
        raise UserError(f"{index} has no weight_map: restore it from its source")
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(set(files.values())):
        arrays |= read_file(index.parent / file)
    missing = [name for name in files if name not in arrays]
    if missing:
        raise UserError(
            f"{files[missing[0]]} lacks {missing[0]}, which {index} lists: restore both from their "
            "source"
        )
    return arrays


def write_arrays(folder: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one file with the format of transformers and the permissions of the folder."""
    safetensors.numpy.save_file(dict(arrays), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(folder.stat().st_mode & 0o666)


def _read_file(path: pathlib.Path) -> dict[str, np.ndarray]:
    _check_file(path)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}): copy it again") from None


def _read_pickled(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads a state dict of PyTorch, without running code that is pickled in the file."""
    _check_file(path)
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError:
        raise UserError(
            f"weights of {path.parent}: got {path.name}, expected {WEIGHTS}; load the model with "
            "transformers and save it with save_pretrained, or install torch, which reads the file"
        ) from None
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        # A safetensors file contains no two arrays that share memory. NumPy reads bfloat16 from it.
        copies = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    except (RuntimeError, EOFError, AttributeError, pickle.UnpicklingError):
        raise UserError(
            f"{path} is damaged, or contains other objects than arrays: copy it again, or save it "
            "with save_pretrained of transformers"
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        save_file(copies, pathlib.Path(folder) / WEIGHTS)
        return _read_file(pathlib.Path(folder) / WEIGHTS)


def _check_file(path: pathlib.Path) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it from the source of the folder")
