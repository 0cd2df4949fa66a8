"""Ponder cost (Graves 2016, section 2.1): a penalty on the number of computation steps."""

import jax.numpy as jnp
from jaxtyping import Array

from bertjax import pretrainer
from bertjax.constraints import Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.pretrainer import Encoded, Encoder, Sum


class Objective(pretrainer.Objective):
    """The mean over all tokens of the number of steps plus the remainder.

    Attributes:
      weight: Share in the total loss, the cost of a step.
    """

    weight: Weight = 0.01

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Steps of all tokens that are not padding."""
        if encoded.ponder is None:
            raise UserError(
                "objective ponder requires a model with adaptive computation time; set "
                "--config.model.name=universal_transformer"
            )
        padding_mask = masks.padding_mask(batch["attention_mask"])
        example_weight = batch.get("example_weight", jnp.ones(len(padding_mask)))
        weights = padding_mask * example_weight[:, None]
        return jnp.sum(weights * encoded.ponder), weights.sum(), {}
