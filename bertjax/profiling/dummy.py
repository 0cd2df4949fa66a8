"""Training step of a config on random tokens, for timing and planning without a corpus."""

from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict

from bertjax import build
from bertjax.data import images, packed, source_targets, streams
from bertjax.pretrainer import Pretrainer
from bertjax.runs import teachers as runs_teachers
from bertjax.train.trainer import Trainer


def trainer(
    config: ConfigDict,
    phase: build.Phase,
    mesh: Mesh,
    teachers_as: Callable[..., PyTree] = runs_teachers.frozen,
) -> tuple[Trainer, dict[str, np.ndarray]]:
    """What makes the steps of a phase, and the rows of one.

    Args:
      config: Of a pretraining.
      phase: The shape of its batches.
      mesh: Of devices that are here, or only described.
      teachers_as: `teaching.shapes` where devices are not here.

    Raises:
      UserError: a teacher cannot read what the model reads.
    """
    teachers = runs_teachers.find(config.objectives)
    for teacher in teachers.values():
        teacher.check(config, None, phase.max_seq_length)
    objectives = runs_teachers.objectives(
        config.objectives, build.tokenizer_fields(config), teachers
    )
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    rows = random_rows(config, phase)
    frozen = teachers_as(teachers)
    return build.trainer(config, pretrainer, mesh, rows, phases=[phase], frozen=frozen), rows


def random_rows(config: ConfigDict, phase: build.Phase) -> dict[str, np.ndarray]:
    """A host batch of a phase's shapes with random tokens, for measuring without a corpus."""
    random = np.random.default_rng(config.seed)
    if config.data.format == images.FORMAT:
        return images.random(config.model, phase.batch_size, random)
    shape = (phase.batch_size, phase.max_seq_length)
    rows = {
        "input_ids": random.integers(5, config.model.vocab_size, shape, np.int32),
        "segment_ids": np.zeros(shape, np.int32),
        "attention_mask": np.ones(shape, bool),
        "example_id": np.arange(phase.batch_size, dtype=np.uint32),
    }
    if "sentence_pair" in config.objectives:
        rows["pair_label"] = random.integers(0, 2, phase.batch_size, np.int32)
    if build.needs_words(config):
        rows["word_starts"] = random.random(shape) < 0.8
    if config.data.format == packed.APART:
        rows["pack_ids"] = np.ones(shape, np.int32)
        rows["position_ids"] = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    if config.data.format in streams.FORMATS:
        rows["memory_mask"] = rows["attention_mask"]
        rows["is_continuation"] = np.ones(phase.batch_size, bool)
    if config.data.format in source_targets.FORMATS:
        rows |= {"target_ids": rows["input_ids"], "target_mask": rows["attention_mask"]}
    if "max_chars_per_word" in config.model:
        width = config.model.max_chars_per_word
        rows["char_ids"] = random.integers(0, 256, (*shape, width), np.int16)
    return rows
