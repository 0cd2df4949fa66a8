"""A config's own training step on random tokens, timed or planned before there is a corpus."""

from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict

from bertjax import build, teaching
from bertjax.interfaces import Pretrainer
from bertjax.train.trainer import Trainer


def trainer(
    config: ConfigDict,
    phase: build.Phase,
    mesh: Mesh,
    teachers_as: Callable[..., PyTree] = teaching.frozen,
) -> tuple[Trainer, dict[str, np.ndarray]]:
    """What makes the steps of a phase, and the rows of one.

    Args:
      config: Of a pretraining.
      phase: The shape of its batches.
      mesh: Of devices that are here, or only described.
      teachers_as: `teaching.shapes` where devices are not here.
    """
    teachers = teaching.find(config.objectives)
    objectives = teaching.objectives(config.objectives, build.facts(config), teachers)
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    rows = build.random_rows(config, phase)
    made = {"batch_size": phase.batch_size, "frozen": teachers_as(teachers)}
    return build.trainer(config, pretrainer, mesh, rows, **made), rows
