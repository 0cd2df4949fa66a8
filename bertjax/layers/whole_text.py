"""The one vector by which a task judges a whole text."""

from jaxtyping import Array, Float

from bertjax.interfaces import Batch, Encoded, Encoder
from bertjax.layers import masks
from bertjax.layers.heads import Pooler
from bertjax.layers.scalar_mix import ScalarMix


def vector(
    encoder: Encoder, encoded: Encoded, batch: Batch, *, pooler_act: str, mix_layer_norm: bool
) -> Float[Array, "B D"]:
    """What the encoder was taught to pool, or a new pooler's output.

    The new pooler reads the first token, [CLS] where that comes last, or, of an encoder whose
    layers are there to be weighed such as ELMo, the mean over all tokens of the weighted sum of all
    layers. What it needs becomes part of the module that calls this, as `pooler` and `mix`.

    Args:
      encoder: Whose output it is.
      encoded: Its output.
      batch: What it read.
      pooler_act: Activation of a new pooler: tanh as in RoBERTa's classification head.
      mix_layer_norm: Whether layers that are weighed are normalised (`layers/scalar_mix.py`).
    """
    if encoded.pooled is not None:
        return encoded.pooled
    pooler = Pooler(encoder.initializer_range, hidden_act=pooler_act, name="pooler")
    if encoded.layers is not None:
        mixed = ScalarMix(mix_layer_norm, name="mix")(encoded.layers)
        return pooler(masks.mean(mixed, batch["attention_mask"])[:, None])
    first = encoded.sequence if encoded.summary is None else encoded.summary[:, None]
    return pooler(first)
