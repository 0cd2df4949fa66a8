"""ELECTRA's generator as a model of its own, for `bertjax export --generator`.

In a run it reads the embeddings of the discriminator and has nothing but layers and a head; alone
it is an encoder with narrower layers than embeddings, and a masked language model.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.objectives.generator import Objective, narrower

_SHARED = (
    "encoder/word_embeddings/",
    "encoder/position_embeddings/",
    "encoder/segment_embeddings/",
    "encoder/embeddings/",
)
"""What both towers read, by its beginning."""


def alone(
    run: Mapping[str, Any], arrays: Mapping[str, np.ndarray], name: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The run and the arrays of a pretraining, as if the generator was what it trained.

    Args:
      run: Its config.
      arrays: Its parameters by name.
      name: What the run is called, for the error.

    Raises:
      UserError: the run has no generator.
    """
    objectives = run.get("objectives", {})
    if "generator" not in objectives:
        raise UserError(
            f"{name} has no generator: leave --generator out; pretraining runs of "
            "configs/electra.py have one"
        )
    fields = {"size": Objective.size, "hidden_act": ""} | objectives["generator"]
    model = {"embedding_size": 0} | run["model"]
    model["embedding_size"] = model["embedding_size"] or model["hidden_size"]
    model |= narrower(model, fields["size"])
    shared = {n: array for n, array in arrays.items() if n.startswith(_SHARED)}
    own = {
        n.removeprefix("generator/"): array
        for n, array in arrays.items()
        if n.startswith("generator/")
    }
    head = {"mlm": {"hidden_act": fields["hidden_act"]}}
    return {**run, "model": model, "objectives": head}, shared | own
