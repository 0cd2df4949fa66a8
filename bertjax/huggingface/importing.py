"""Import a released model as a run that all other commands read.

read         folder -> Import: bertjax parameters with a config and a tokenizer
  run_config   HFModel -> config of a run
  parameters   HFModel, config -> parameters
write        Import -> run folder: config.json, tokenizer/, checkpoints/0
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertjax import build
from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import architecture as architectures
from bertjax.huggingface import classes, elmo, import_warnings, name_map, sentence_transformers
from bertjax.huggingface import heads as huggingface_heads
from bertjax.huggingface import model as huggingface_model
from bertjax.huggingface.model import HFModel
from bertjax.interfaces import Tokenizer
from bertjax.io import copies
from bertjax.io.files import write_text
from bertjax.pretrainer import Pretrainer, Task
from bertjax.tokenizers import definitions
from bertjax.tokenizers.special_tokens import WORDPIECE_SPECIALS
from bertjax.tokenizers.subword import SubwordTokenizer
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.train.checkpoint import trees
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.state import unbox

_COMPUTATION = {"precision": "auto", "remat": "none", "unroll": 0}
"""Fields of models that change how outputs are computed, not their values; as in
`configs/common.py`."""


@dataclasses.dataclass(frozen=True)
class Import:
    """A released model as a bertjax run.

    Attributes:
      config: Config of the run.
      tokenizer: Tokenizer of the model.
      params: Parameters by path.
      left_out: Parts of the folder that are not imported.
      warnings: Properties that the folder does not specify, and the assumed values.
    """

    config: ConfigDict
    tokenizer: Tokenizer
    params: Mapping[str, np.ndarray]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def read(
    source: pathlib.Path, *, task: str = "", vocabulary: str = "", labels: Sequence[str] = ()
) -> Import:
    """Reads a model.

    Args:
      source: A folder that `save_pretrained` wrote, or a released ELMo.
      task: The task whose head the model has; empty: that of its config, or pairs of texts for a
        cross-encoder of sentence-transformers; "none" leaves out the head.
      vocabulary: The path of the tokenizer; empty: in the model's folder.
      labels: Names of the classifier's outputs in their order; empty: those of its config.

    Raises:
      UserError: a file is missing, or does not fit the others.
    """
    if elmo.is_released(source):
        huggingface_heads.check_options(None, task, labels)
        return _read_elmo(source, vocabulary)
    whole = huggingface_model.read(source)
    huggingface_heads.check_options(architectures.task_of(whole.parts), task, labels)
    is_cross_encoder = sentence_transformers.is_cross_encoder(source)
    if is_cross_encoder and not whole.config.get("finetuning_task"):
        task = task or huggingface_heads.PAIRS
    released, left_out = _drop_unused_parts(whole, task)
    tokenizer = load_tokenizer(vocabulary or source)
    config = run_config(released, source.resolve().name, task, labels)
    spare = config.model.vocab_size - tokenizer.vocab_size
    if spare < 0 or (
        spare and not architectures.attribute(whole.architecture, "EXTRA_EMBEDDING_ROWS")
    ):
        raise UserError(
            f"vocab_size of {source}: got {config.model.vocab_size}, expected "
            f"{tokenizer.vocab_size}, that of its tokenizer; specify another one with --tokenizer, "
            "or resize the model with resize_token_embeddings of transformers"
        )
    params = parameters(released, config, tokenizer, str(source))
    with config.unlocked():
        config.imported.parameters = trees.fingerprint(trees.nest(params))
        if spare:
            config.imported.spare_rows = spare
        if settings := sentence_transformers.read_folder(source):
            config.imported.sentence_transformers = settings
        if is_cross_encoder and (length := sentence_transformers.max_length(source)):
            config.data.max_seq_length = length
    return Import(
        config,
        tokenizer,
        params,
        left_out,
        import_warnings.find_warnings(released, task, tokenizer),
    )


def _read_elmo(source: pathlib.Path, vocabulary: str) -> Import:
    """Reads a released ELMo; without a vocabulary, all words are encoded by characters."""
    released = elmo.read(source)
    specials = {piece: number for number, piece in enumerate(WORDPIECE_SPECIALS)}
    bare = definitions.words(specials, punctuation=False)
    tokenizer = load_tokenizer(vocabulary) if vocabulary else SubwordTokenizer(bare)
    model = elmo.fields(released.options) | {"vocab_size": tokenizer.vocab_size}
    imported = {"name": source.resolve().name, "model_type": "elmo", "dtype": "float32"}
    config = _run(model | {"precision": "auto", "unroll": 0}, imported, {"objectives": {}})
    params = elmo.parameters(released, parameter_shapes(pretrainer(config)), source)
    with config.unlocked():
        config.imported.parameters = trees.fingerprint(trees.nest(params))
    return Import(config, tokenizer, params, ())


def _run(
    model: Mapping[str, Any], imported: Mapping[str, Any], heads: Mapping[str, Mapping[str, Any]]
) -> ConfigDict:
    """The config of a run without training steps."""
    sections = {
        "seed": 0,
        "num_train_steps": 0,
        "best_metric": "held_out/mlm/loss",
        "best_mode": "min",
        "model": dict(model),
        "tokenizer": {"path": ""},
        "data": {"corpus": ""},
        "imported": dict(imported),
    }
    heads = {**heads, "data": {**sections["data"], **heads.get("data", {})}}
    return configs.from_json(json.dumps(sections | heads))


def run_config(
    released: HFModel, name: str, task: str = "", labels: Sequence[str] = ()
) -> ConfigDict:
    """The config of the run: the model, its heads, and the origin of the weights.

    Args:
      released: The Hugging Face model.
      name: Its name.
      task: See `read`.
      labels: See `read`.

    Raises:
      UserError: bertjax does not have such a model, or the task is not known.
    """
    heads = [part for part in released.parts if architectures.is_head(part)]
    if head := architectures.task_of(heads):
        sections = huggingface_heads.bertjax_sections(released, head, task, labels)
    else:
        sections = {"objectives": {head: released.head_fields(head) for head in heads}}
    imported = {
        "name": name,
        "model_type": released.model_type,
        "dtype": released.dtype,
        # As text: its keys need not be valid names of config fields.
        "config": json.dumps(released.config, sort_keys=True),
        **sections.pop("imported", {}),
    }
    declared = build.model_fields(released.fields)
    computation = {name: value for name, value in _COMPUTATION.items() if name in declared}
    return _run(released.fields | computation, imported, sections)


def classifier_act(config: ConfigDict) -> str:
    """The pooler activation that a fine-tuned run must have to be exported again."""
    if config.imported.model_type == "elmo":
        return "tanh"
    return architectures.attribute(architectures.load(config.imported.model_type), "CLASSIFIER_ACT")


def parameters(
    released: HFModel,
    config: ConfigDict,
    tokenizer: Tokenizer | None = None,
    source: str = "the model",
) -> dict[str, np.ndarray]:
    """Converts the arrays of a model to bertjax parameters, by path.

    Args:
      released: The Hugging Face model.
      config: From `run_config`.
      tokenizer: Its tokenizer, which some heads require.
      source: Names the model in errors.

    Raises:
      UserError: arrays are missing, unexpected or of another shape; a table lists them.
    """
    shapes = parameter_shapes(pretrainer(config, tokenizer))
    own_task = config.task.name if "task" in config else ""
    hf_task = architectures.exchanged_task(own_task) if own_task else ""
    shapes = architectures.rename_task(shapes, own_task, hf_task)
    architecture = released.architecture
    maps = architectures.maps_of(architecture, architectures.parts_of(architecture, shapes))
    params = name_map.to_bertjax(maps, released.arrays, shapes, config.model, source)
    params = classes.to_bertjax(config, params)
    params = {name: np.asarray(params[name], np.float32) for name in shapes}
    return architectures.rename_task(params, hf_task, own_task)


def write(imported: Import, target: pathlib.Path) -> None:
    """Writes the run's folder, atomically.

    Raises:
      UserError: the target is not empty.
    """
    with copies.new_folder(target, "config.json") as folder:
        write_text(folder / "config.json", configs.to_json(imported.config) + "\n")
        imported.tokenizer.save(str(folder / "tokenizer"))
        state = {"params": trees.nest(imported.params)}
        provenance = {"tokenizer": imported.tokenizer.fingerprint}
        with Checkpoints(folder, provenance=provenance) as checkpoints:
            checkpoints.save(jax.tree.map(jnp.asarray, state), step=0)


def _drop_unused_parts(released: HFModel, task: str) -> tuple[HFModel, tuple[str, ...]]:
    """Leaves out the parts that a model with a task's head does not use, or that head."""
    left_out = huggingface_heads.unused_parts(released, task)
    for part in left_out:
        released = released.without(part)
    return released, left_out


def pretrainer(config: ConfigDict, tokenizer: Tokenizer | None = None) -> Pretrainer:
    """Builds the module of an imported run: the encoder and its heads."""
    if "task" in config:
        heads = {config.task.name: build.task(config.task)}
    else:
        heads = build.objectives(config.objectives, build.tokenizer_fields(config, tokenizer))
    return Pretrainer(build.encoder(config.model), heads)


def parameter_shapes(module: Pretrainer) -> dict[str, name_map.Shape]:
    """The shapes of all parameters, by path."""

    def initial() -> Any:
        batch = _batch(module)
        return unbox(module.init(jax.random.key(0), batch, train=False)["params"])

    leaves = trees.flatten_names(jax.eval_shape(initial))
    return {name: leaf.shape for name, leaf in leaves.items()}


def _batch(module: Pretrainer) -> dict[str, jax.Array]:
    """A batch with the keys that heads read, for shapes only."""
    tokens, rows = jnp.zeros((1, 2), jnp.int32), jnp.zeros(1, jnp.int32)
    heads = [make() for make in module.objectives.values()]
    label_shape = next((head.label_shape for head in heads if isinstance(head, Task)), ())
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
        "labels": jnp.zeros((1, *label_shape), jnp.int32),
        "token_labels": tokens,
    }
