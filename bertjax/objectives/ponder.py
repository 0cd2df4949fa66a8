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
    """The mean over all tokens of the steps that each took, and of what was left when it halted.

    Attributes:
      weight: Share in the total loss: what a step costs.
    """

    weight: Weight = 0.01

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Steps, of the tokens that are there."""
        if encoded.ponder is None:
            raise UserError(
                "objective ponder needs a model that halts: set "
                "--config.model.name=universal_transformer"
            )
        there = masks.padding_mask(batch["attention_mask"])
        example_weight = batch.get("example_weight", jnp.ones(len(there)))
        weights = there * example_weight[:, None]
        return jnp.sum(weights * encoded.ponder), weights.sum(), {}
