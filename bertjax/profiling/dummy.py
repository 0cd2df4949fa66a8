"""Build the trainer of a config with random batches, for timing and planning without a corpus."""

from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict

from bertjax import build
from bertjax.pretrainer import Pretrainer
from bertjax.runs import examples
from bertjax.runs import teachers as runs_teachers
from bertjax.train.trainer import Trainer


def build_trainer(
    config: ConfigDict,
    phase: build.Phase,
    mesh: Mesh,
    load_teachers: Callable[..., PyTree] = runs_teachers.frozen_params,
) -> tuple[Trainer, dict[str, np.ndarray]]:
    """Builds the trainer of a phase, and a batch for it.

    Args:
      config: Config of pretraining.
      phase: Defines the shape of batches.
      mesh: Mesh of present devices, or of topology descriptions.
      load_teachers: Returns parameters of teachers; `runs.teachers.shapes` for topology
        descriptions.

    Returns:
      The trainer, and a host batch.

    Raises:
      UserError: a teacher is incompatible with the config.
    """
    teachers = runs_teachers.find(config.objectives, config.mesh.attention_kernel)
    for teacher in teachers.values():
        teacher.check(config, None, phase.max_seq_length)
    objectives = runs_teachers.objectives(
        config.objectives, build.tokenizer_fields(config), teachers
    )
    pretrainer = Pretrainer(build.encoder(config.model), objectives, build.encode(config))
    batch = random_batch(config, phase)
    frozen = load_teachers(teachers)
    return build.trainer(config, pretrainer, mesh, batch, phases=[phase], frozen=frozen), batch


def random_batch(config: ConfigDict, phase: build.Phase) -> dict[str, np.ndarray]:
    """Returns a host batch of random tokens, or images, in the shapes of a phase."""
    random = np.random.default_rng(config.seed)
    model, shape = build.model_values(config.model), (phase.batch_size, phase.max_seq_length)
    batch = build.example_format(config).random_batch(model, shape, random)
    batch |= {key: make(random, shape) for key, make in examples.batch_keys(config).items()}
    if width := examples.max_chars_per_word(config.model):
        batch["char_ids"] = random.integers(0, 256, (*shape, width), np.int16)
    return batch
