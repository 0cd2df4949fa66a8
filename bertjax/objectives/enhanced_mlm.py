"""Masked language model with an enhanced mask decoder (He et al. 2021, DeBERTa, section 3.2).

The decoder is a part of the model (`mask_decoder_layers` of `models/deberta.py`), as it applies the
last layer of the encoder again; this objective predicts from its output.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.interfaces import Batch
from bertjax.objectives import mlm
from bertjax.pretrainer import Encoded, Encoder


class Objective(mlm.Objective):
    """Masks tokens as `mlm` does, and predicts them from the output of the mask decoder.

    Without a decoder, it predicts from the output of the encoder, as `mlm` does. Fields are those
    of `mlm`.
    """

    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B P V"], Float[Array, "B P"]]:
        """Logits and weight of each prediction."""
        if encoded.queries is None:
            return super().scores(encoder, encoded, batch, train=train)
        return self.token_logits(encoder, encoded), batch["mlm_weights"]

    def token_logits(self, encoder: Encoder, encoded: Encoded) -> Float[Array, "B Q V"]:
        """Logits over the vocabulary for every output of the decoder.

        These are the predicted positions of a batch that has some, else all positions.
        """
        if encoded.queries is None:
            return super().token_logits(encoder, encoded)
        batch_size, length = encoded.queries.shape[:2]
        positions = jnp.broadcast_to(jnp.arange(length), (batch_size, length))
        return self.logits(encoder, encoded.queries, positions)
