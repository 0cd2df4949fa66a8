"""Convert a muP model to the standard parametrisation, which models of transformers have.

The multipliers of the forward pass (`layers/width_scaling.py`) become part of the weights: the
factor of the queries that of their kernel and bias, and the factor of the tied output layer that
of the LayerNorm before it. The outputs are the same.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax import build
from bertjax.layers import width_scaling

_QUERY = "/attention/query/"
_BEFORE_OUTPUT = "mlm/transform/norm/"
"""Of the only head with tied embeddings that models of transformers with muP fields have."""


def to_standard(
    run: Mapping[str, Any], params: Mapping[str, np.ndarray]
) -> tuple[Mapping[str, Any], Mapping[str, np.ndarray]]:
    """Returns config and parameters of a model with the same outputs and without multipliers.

    Args:
      run: The config of a run, with all fields of its model.
      params: Its parameters by path.
    """
    if not run["model"].get("mup_base_width"):
        return run, params
    model = {name: value for name, value in run["model"].items() if not name.startswith("mup_")}
    encoder = build.encoder(run["model"])
    query = np.float32(width_scaling.query_scale(encoder))
    output = np.float32(1 / width_scaling.width_ratio(encoder))

    def scale(name: str, array: np.ndarray) -> np.ndarray:
        if _QUERY in name:
            return array * query
        return array * output if name.startswith(_BEFORE_OUTPUT) else array

    return {**run, "model": model}, {name: scale(name, array) for name, array in params.items()}
