"""Import a released model as a run that all other commands read.

read         folder -> Import: their arrays as our parameters, with a config and a tokenizer
  run_config   Released -> config of a run
  parameters   Released, config -> parameters
write        Import -> run folder: config.json, tokenizer/, checkpoints/0
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertjax import build
from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import architecture as architectures
from bertjax.huggingface import classes, elmo, import_warnings, name_map
from bertjax.huggingface import heads as huggingface_heads
from bertjax.huggingface import model as huggingface_model
from bertjax.huggingface.model import Released
from bertjax.interfaces import Tokenizer
from bertjax.io import copies, storage
from bertjax.io.files import write_text
from bertjax.pretrainer import Pretrainer
from bertjax.tokenizers import definitions
from bertjax.tokenizers.special_tokens import WORDPIECE_SPECIALS
from bertjax.tokenizers.subword import SubwordTokenizer
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.train.checkpoint import trees
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.state import unboxed

_COMPUTATION = {"precision": "auto", "remat": "none", "unroll": 0}
"""Fields of models that change how outputs are computed, not their values; as in
`configs/common.py`."""


@dataclasses.dataclass(frozen=True)
class Import:
    """A model of theirs as a run of ours.

    Attributes:
      config: Of the run.
      tokenizer: Of the model.
      params: By name.
      left_out: Parts of the folder that were not taken over.
      warnings: What the folder does not specify, and what was assumed.
    """

    config: ConfigDict
    tokenizer: Tokenizer
    params: Mapping[str, np.ndarray]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def read(
    source: pathlib.Path, *, task: str = "", vocabulary: str = "", labels: Sequence[str] = ()
) -> Import:
    """Reads a model, whole or not at all.

    Args:
      source: What `save_pretrained` wrote, or a released ELMo.
      task: The task whose head the model has; empty: as its config says; "none" leaves it behind.
      vocabulary: Where the tokenizer lies; empty: with the model.
      labels: Names of the classifier's outputs in their order; empty: as its config says.

    Raises:
      UserError: something is missing, or does not fit.
    """
    if elmo.is_released(source):
        huggingface_heads.check_statements(None, task, labels)
        return _read_elmo(source, vocabulary)
    whole = huggingface_model.read(source)
    huggingface_heads.check_statements(architectures.task_of(whole.parts), task, labels)
    released, left_out = _without_superfluous(whole, task)
    tokenizer = load_tokenizer(vocabulary or source)
    config = run_config(released, source.resolve().name, task, labels)
    if config.model.vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"{source}: the model has vocab_size={config.model.vocab_size}, its tokenizer "
            f"{tokenizer.vocab_size} pieces: name the right one with --tokenizer, or make them "
            "equal with resize_token_embeddings of transformers"
        )
    params = parameters(released, config, tokenizer, str(source))
    with config.unlocked():
        config.imported.parameters = trees.fingerprint(trees.nested(params))
    return Import(
        config, tokenizer, params, left_out, import_warnings.of(released, task, tokenizer)
    )


def _read_elmo(source: pathlib.Path, vocabulary: str) -> Import:
    """ELMo as released; without a vocabulary, its tokenizer knows no word, and spells each."""
    released = elmo.read(source)
    specials = {piece: number for number, piece in enumerate(WORDPIECE_SPECIALS)}
    bare = definitions.words(specials, punctuation=False)
    tokenizer = load_tokenizer(vocabulary) if vocabulary else SubwordTokenizer(bare)
    model = elmo.fields(released.options) | {"vocab_size": tokenizer.vocab_size}
    about = {"name": source.resolve().name, "model_type": "elmo", "dtype": "float32"}
    config = _run(model | {"precision": "auto", "unroll": 0}, about, {"objectives": {}})
    params = elmo.parameters(released, parameter_shapes(pretrainer(config)), source)
    with config.unlocked():
        config.imported.parameters = trees.fingerprint(trees.nested(params))
    return Import(config, tokenizer, params, ())


def _run(
    model: Mapping[str, Any], about: Mapping[str, Any], heads: Mapping[str, Mapping[str, Any]]
) -> ConfigDict:
    """The config of a run that took no step here."""
    sections = {
        "seed": 0,
        "num_train_steps": 0,
        "best_metric": "held_out/mlm/loss",
        "best_mode": "min",
        "model": dict(model),
        "tokenizer": {"path": ""},
        "data": {"corpus": ""},
        "imported": dict(about),
    }
    heads = {**heads, "data": {**sections["data"], **heads.get("data", {})}}
    return configs.from_json(json.dumps(sections | heads))


def run_config(
    released: Released, name: str, task: str = "", labels: Sequence[str] = ()
) -> ConfigDict:
    """What `config.json` of the run says: the model, its heads, and where it is from.

    Args:
      released: A model of theirs.
      name: What it is called.
      task: See `read`.
      labels: See `read`.

    Raises:
      UserError: our model cannot be theirs, or a task cannot be named.
    """
    heads = [part for part in released.parts if architectures.is_head(part)]
    if head := architectures.task_of(heads):
        sections = huggingface_heads.bertjax_sections(released, head, task, labels)
    else:
        sections = {"objectives": {head: released.head_fields(head) for head in heads}}
    about = {
        "name": name,
        "model_type": released.model_type,
        "dtype": released.dtype,
        # As text: its words may hold what names no field of a config.
        "config": json.dumps(released.config, sort_keys=True),
        **sections.pop("imported", {}),
    }
    declared = build.model_fields(released.fields)
    computation = {name: value for name, value in _COMPUTATION.items() if name in declared}
    return _run(released.fields | computation, about, sections)


def classifier_act(config: ConfigDict) -> str:
    """The activation before the classes of what is fine-tuned and exported again."""
    if config.imported.model_type == "elmo":
        return "tanh"
    return architectures.attribute(architectures.load(config.imported.model_type), "CLASSIFIER_ACT")


def parameters(
    released: Released,
    config: ConfigDict,
    tokenizer: Tokenizer | None = None,
    what: str = "the model",
) -> dict[str, np.ndarray]:
    """Our parameters by name.

    Args:
      released: A model of theirs.
      config: As `run_config` makes it.
      tokenizer: Its tokenizer, as far as heads want to know of it.
      what: Names the model in the error.

    Raises:
      UserError: arrays of theirs are missing, unexpected or of another shape; a table lists them.
    """
    shapes = parameter_shapes(pretrainer(config, tokenizer))
    architecture = released.architecture
    maps = architectures.maps_of(architecture, architectures.parts_of(architecture, shapes))
    params = name_map.to_bertjax(maps, released.arrays, shapes, config.model, what)
    params = classes.to_bertjax(config, params)
    return {name: np.asarray(params[name], np.float32) for name in shapes}


def write(made: Import, target: pathlib.Path) -> None:
    """Writes the run's folder, whole or not at all.

    Raises:
      UserError: there is something already.
    """
    with new_folder(target) as folder:
        write_text(folder / "config.json", configs.to_json(made.config) + "\n")
        made.tokenizer.save(str(folder / "tokenizer"))
        state = {"params": trees.nested(made.params)}
        provenance = {"tokenizer": made.tokenizer.fingerprint}
        with Checkpoints(folder, provenance=provenance) as checkpoints:
            checkpoints.save(jax.tree.map(jnp.asarray, state), step=0)


@contextlib.contextmanager
def new_folder(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder to write into, which becomes the target when all went well.

    Raises:
      UserError: the target holds something already.
    """
    if storage.is_remote(target):
        with tempfile.TemporaryDirectory(prefix="bertjax-") as parent:
            folder = pathlib.Path(parent) / target.name
            folder.mkdir()
            if storage.with_retries(lambda: storage.list_files(target), target):
                raise _not_new(target)
            yield folder
            copies.upload_tree(folder, target, "config.json")
        return
    if os.path.exists(target) and (not target.is_dir() or any(target.iterdir())):
        raise _not_new(target)
    storage.check_folder(target)
    unfinished = target.with_name(f".{target.name}.unfinished-{uuid.uuid4().hex}")
    try:
        storage.make_folder(unfinished)
        yield unfinished
        unfinished.replace(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _not_new(target: pathlib.Path) -> UserError:
    return UserError(f"{target} exists and is not empty: name a new folder, or remove it first")


def _without_superfluous(released: Released, task: str) -> tuple[Released, tuple[str, ...]]:
    """Leaves out what has no use beside a task's head, or that head itself."""
    unwanted = huggingface_heads.superfluous(released, task)
    for part in unwanted:
        released = released.without(part)
    return released, unwanted


def pretrainer(config: ConfigDict, tokenizer: Tokenizer | None = None) -> Pretrainer:
    """The module of an imported run: the encoder and its heads."""
    if "task" in config:
        heads = {config.task.name: build.task(config.task)}
    else:
        heads = build.objectives(config.objectives, build.tokenizer_fields(config, tokenizer))
    return Pretrainer(build.encoder(config.model), heads)


def parameter_shapes(module: Pretrainer) -> dict[str, name_map.Shape]:
    """The shapes of all parameters, by name."""

    def initial() -> Any:
        batch = _batch(spans="squad" in module.objectives)
        return unboxed(module.init(jax.random.key(0), batch, train=False)["params"])

    leaves = trees.named(jax.eval_shape(initial))
    return {name: leaf.shape for name, leaf in leaves.items()}


def _batch(*, spans: bool) -> dict[str, jax.Array]:
    """A batch of all that a head may ask for; nothing of it is looked at."""
    tokens, rows = jnp.zeros((1, 2), jnp.int32), jnp.zeros(1, jnp.int32)
    return {
        "input_ids": tokens,
        "original_ids": tokens,
        "segment_ids": tokens,
        "attention_mask": jnp.ones(tokens.shape, bool),
        "char_ids": jnp.zeros((*tokens.shape, 50), jnp.int32),
        "word_starts": jnp.ones(tokens.shape, bool),
        "example_id": rows.astype(jnp.uint32),
        "example_key": jax.random.split(jax.random.key(0), 1),
        "pair_label": rows,
        "labels": tokens if spans else rows,
        "token_labels": tokens,
    }
