"""Read and write Hugging Face model folders: `config.json` and `model.safetensors`.

read     folder -> Released: the Hugging Face config, and the arrays by their canonical names
write    Released -> folder

Each `model_type` is a file of `huggingface/architectures/`. `models/bert.py` covers four of them:
which one a run is follows from its config.
"""

import dataclasses
import pathlib
import re
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from bertjax import catalog
from bertjax.errors import UserError
from bertjax.huggingface import weights
from bertjax.huggingface.name_map import ArrayMap
from bertjax.io.files import read_json, write_hf_json
from bertjax.layers.dense import activation

_ASSUMED = {"position_offset": 0, "embedding_size": 0, "num_pooler_layers": 1}
"""What a run's config may leave out."""

_REPLACED_TOKENS = {"generator", "rtd"}
"""The objectives of ELECTRA."""


def member(run: Mapping[str, Any]) -> str | None:
    """The `model_type` of theirs, None for none of the four.

    ELECTRA is what has narrow embeddings; of those that have not, what finds replaced tokens, or
    what a task has put ELECTRA's pooler on.
    """
    if run["model"]["name"] != "bert":
        return None
    model = _ASSUMED | run["model"]
    narrow = model["embedding_size"] not in (0, model["hidden_size"])
    segments, later = model["type_vocab_size"] > 0, model["position_offset"] > 0
    if narrow or _finds_replaced_tokens(run, model):
        return "electra" if segments and not later else None
    if not segments:
        return None if later else "distilbert"
    return "roberta" if later else "bert"


def _finds_replaced_tokens(run: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    if "task" in run and not model["num_pooler_layers"]:
        return run["task"].get("pooler_act") == "gelu"
    return bool(_REPLACED_TOKENS & set(run.get("objectives", ())))


ARCHITECTURES = "huggingface/architectures"

ENCODER, POOLER = "encoder", "encoder/pooler"
"""The part of every architecture, and the one that comes and goes with what trained it."""

READ_TEXTS, READ_TOKENS = ("glue", "multiple_choice"), ("squad", "ner")
"""Tasks whose heads read one vector for the whole text, and those that read one for each token."""

_TASKS_BY_NAMES = ("glue", "squad")
"""Of tasks whose heads have the same names of arrays the one that a file without a class has."""

_BUFFERS = (
    *("embeddings.position_ids", "embeddings.token_type_ids"),
    *(".attn.bias", ".attn.masked_bias"),
)
"""Older releases keep these constants among the weights."""

_OLD_WORDS = {"gamma": "weight", "beta": "bias"}
"""Of LayerNorm, in the files that were made from TensorFlow's."""


@dataclasses.dataclass(frozen=True)
class Released:
    """A model of theirs.

    Attributes:
      model_type: Which architecture it is.
      config: Their `config.json`.
      arrays: By name; names begin with the architecture's prefix, heads or not.
      dtype: The one type of all arrays in the file, float32 if there are several.
    """

    model_type: str
    config: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    dtype: str

    @classmethod
    def of(cls, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> "Released":
        """A model of a config and of arrays as they are named in files of any age, heads or not.

        Raises:
          UserError: an architecture that we do not have, or arrays that we share are two.
        """
        model_type = _known_type(config)
        kept = {name: array for name, array in arrays.items() if not name.endswith(_BUFFERS)}
        types = {array.dtype.name for array in kept.values()}
        architecture = catalog.load(ARCHITECTURES, model_type)
        named = _by_the_names_that_count(kept, architecture.PREFIX, architecture.SAME)
        return cls(model_type, config, named, types.pop() if len(types) == 1 else "float32")

    @property
    def architecture(self) -> ModuleType:
        """The file that knows this `model_type`."""
        return catalog.load(ARCHITECTURES, self.model_type)

    @property
    def parts(self) -> list[str]:
        """The parts of our parameters that the arrays hold; the encoder is taken for granted."""
        parts = self.architecture.parts()
        return [
            part
            for part, pairs in parts.items()
            if part == ENCODER or not pairs or any(each.is_in(self.arrays) for each in pairs)
            if part not in (*READ_TEXTS, *READ_TOKENS) or part in self._tasks
        ]

    @property
    def _tasks(self) -> Collection[str]:
        """The tasks whose heads the arrays may be: that of the class, if it has one."""
        heads = {name: heads for heads, name in self.architecture.CLASSES.items()}
        named = [heads.get(name, ()) for name in self.config.get("architectures") or ()]
        return next((found for found in named if task_of(found)), _TASKS_BY_NAMES)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of our model."""
        return self.architecture.fields(self.config, self.parts)

    def head_fields(self, head: str) -> dict[str, Any]:
        """The fields of the objective that a head becomes."""
        act = getattr(self.architecture, "HEAD_ACT", {}).get(head)
        same = act is None or activation(act) is activation(self.fields["hidden_act"])
        return {} if same else {"hidden_act": act}

    def without(self, part: str) -> "Released":
        """The same model with the arrays of a part left out; no part but the encoder has layers."""
        names = {pair.hf for pair in self.architecture.parts()[part]}
        arrays = {name: array for name, array in self.arrays.items() if name not in names}
        return dataclasses.replace(self, arrays=arrays)


def read(folder: pathlib.Path) -> Released:
    """Reads a folder that `save_pretrained` wrote.

    Raises:
      UserError: there is none, of an architecture that we do not have, or damaged.
    """
    if not folder.is_dir():
        raise UserError(
            f"no folder {folder}: models are read from disk; `hf download NAME --local-dir "
            f"{folder}` fetches one from the hub"
        )
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} has no config.json: expected a folder that save_pretrained wrote"
        )
    config = read_json(folder / "config.json")
    _known_type(config)
    return Released.of(config, weights.read(folder))


def write(folder: pathlib.Path, released: Released) -> None:
    """Writes the two files; without heads, names lose their prefix, as in transformers."""
    arrays = released.arrays
    prefix = f"{released.architecture.PREFIX}."
    bare = released.config["architectures"] == [released.architecture.CLASSES[()]]
    if bare and all(name.startswith(prefix) for name in arrays):
        arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    write_hf_json(folder / "config.json", released.config)
    dtype = released.dtype
    weights.write(folder, {n: array.astype(dtype, copy=False) for n, array in arrays.items()})


def model_type_of(run: Mapping[str, Any]) -> str:
    """The architecture of theirs that a run's config describes.

    Raises:
      UserError: none does.
    """
    if "imported" in run:
        return run["imported"]["model_type"]
    known = catalog.names(ARCHITECTURES)
    for name in known:
        if catalog.load(ARCHITECTURES, name).describes(run):
            return name
    raise UserError(
        f"no architecture of transformers that bertjax exchanges ({', '.join(known)}) is this "
        f"run's model {run['model']['name']!r} with its numbers: the run stays as it is"
    )


def task_of(heads: Iterable[str]) -> str | None:
    """The task among some heads; there is one at most."""
    return next((head for head in heads if head in (*READ_TEXTS, *READ_TOKENS)), None)


def own_pooler(task: str) -> str:
    """The part that a task puts on an encoder without a pooler."""
    return f"{task}/pooler"


def has_own_pooler(architecture: ModuleType, task: str) -> bool:
    """Whether their head of a task has a pooler that is not the encoder's."""
    return any_under(
        own_pooler(task), (path for each in architecture.parts()[task] for path in each.paths)
    )


def bare_heads(architecture: ModuleType) -> set[str]:
    """The heads that have no arrays of their own."""
    return {part for part, pairs in architecture.parts().items() if not pairs}


def heads_of_a_class(architecture: ModuleType, found: Collection[str]) -> tuple[str, ...]:
    """Of some heads those that a class of transformers has: as many as there is a class for."""
    fitting = [heads for heads in architecture.CLASSES if set(heads) <= set(found)]
    return max(fitting, key=lambda heads: (task_of(heads) is not None, len(heads)))


def is_head(part: str) -> bool:
    """Whether a part stands beside the encoder."""
    return part.partition("/")[0] != ENCODER


def parts_of(architecture: ModuleType, ours: Iterable[str]) -> list[str]:
    """The parts that our arrays, or the shapes of them, belong to."""
    ours = list(ours)
    return [part for part in architecture.parts() if any_under(part, ours)]


def any_under(part: str, ours: Iterable[str]) -> bool:
    """Whether a name of ours belongs to a part."""
    return any(name.startswith(f"{part}/") for name in ours)


def pairs_of(architecture: ModuleType, parts: Iterable[str]) -> list[ArrayMap]:
    """Both names of all arrays of some parts."""
    known = architecture.parts()
    return [pair for part in parts for pair in known[part]]


def _known_type(config: Mapping[str, Any]) -> str:
    model_type, known = config.get("model_type"), catalog.names(ARCHITECTURES)
    if model_type not in known:
        raise UserError(
            f"config.json says model_type={model_type!r}: bertjax exchanges {', '.join(known)}"
        )
    return model_type


def _by_the_names_that_count(
    arrays: Mapping[str, np.ndarray], prefix: str, same: Mapping[str, str]
) -> dict[str, np.ndarray]:
    named = {
        re.sub(r"[^.]+$", lambda word: _OLD_WORDS.get(word[0], word[0]), name): array
        for name, array in arrays.items()
    }
    if not any(name.startswith(f"{prefix}.") for name in named):
        named = {f"{prefix}.{name}": array for name, array in named.items()}
    for name, original in same.items():
        if name not in named:
            continue
        repeated = named.pop(name)
        if not np.array_equal(repeated, named.setdefault(original, repeated)):
            raise UserError(
                f"{name} differs from {original}: bertjax shares the two; tie_weights() of "
                "transformers makes them one"
            )
    return named
