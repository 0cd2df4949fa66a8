"""Cosine embedding loss between hidden states of student and teacher (Sanh et al. 2019, section 2).

The teacher is that of `soft_targets`, whose forward pass serves both objectives.
"""

import jax.numpy as jnp
from jaxtyping import Array

from bertjax import pretrainer
from bertjax.constraints import Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.pretrainer import Encoded, Encoder, Sum


class Objective(pretrainer.Objective):
    """Aligns the direction of the last hidden states of all tokens with the teacher's.

    Attributes:
      weight: Share in the total loss.
    """

    weight: Weight = 1.0

    follows = ("soft_targets",)  # one of these precedes it in a config

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        if "teacher_sequence" not in batch:
            raise UserError(
                "objective hidden_cosine requires a teacher; put soft_targets before it in "
                "config.objectives"
            )
        if batch["teacher_sequence"].shape[-1] != encoder.hidden_size:
            raise UserError(
                f"objective hidden_cosine: got a student of hidden_size={encoder.hidden_size}, "
                f"expected the teacher's {batch['teacher_sequence'].shape[-1]}; make them equal, "
                "or remove hidden_cosine"
            )
        return batch

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """1 - cosine, over all tokens that are not padding."""
        own, teacher = (
            states.astype(jnp.float32) for states in (encoded.sequence, batch["teacher_sequence"])
        )
        lengths = jnp.linalg.norm(own, axis=-1) * jnp.linalg.norm(teacher, axis=-1)
        cosines = jnp.sum(own * teacher, axis=-1) / jnp.maximum(lengths, 1e-6)
        example_weight = batch.get("example_weight", jnp.ones(len(own)))
        weights = masks.padding_mask(batch["attention_mask"]) * example_weight[:, None]
        return jnp.sum(weights * (1 - cosines)), weights.sum(), {}
