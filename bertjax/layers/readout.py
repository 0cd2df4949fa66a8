"""What a task reads of an encoder's output: a vector for each token, or one for the whole text.

Both may need parameters of their own, which become part of the module that calls: `mix`, the
weights of layers that are there to be weighed, such as ELMo's, and `pooler`.
"""

from jaxtyping import Array, Float

from bertjax.interfaces import Batch, Encoded, Encoder
from bertjax.layers import masks
from bertjax.layers.heads import Pooler
from bertjax.layers.scalar_mix import ScalarMix


def of_tokens(encoded: Encoded, *, mix_layer_norm: bool) -> Float[Array, "B L D"]:
    """The last layer, or the weighted sum of all of an encoder that was made for that.

    Args:
      encoded: An encoder's output.
      mix_layer_norm: Whether layers that are weighed are normalised (`layers/scalar_mix.py`).
    """
    if encoded.layers is None:
        return encoded.sequence
    return ScalarMix(mix_layer_norm, name="mix")(encoded.layers)


def of_text(
    encoder: Encoder, encoded: Encoded, batch: Batch, *, pooler_act: str, mix_layer_norm: bool
) -> Float[Array, "B D"]:
    """What the encoder was taught to pool, or a new pooler's output.

    The new pooler reads the first token, [CLS] where that comes last, or the mean over all tokens
    where layers are weighed.

    Args:
      encoder: Whose output it is.
      encoded: Its output.
      batch: What it read.
      pooler_act: Activation of a new pooler: tanh as in RoBERTa's classification head.
      mix_layer_norm: As in `of_tokens`.
    """
    if encoded.pooled is not None:
        return encoded.pooled
    pooler = Pooler(encoder.initializer_range, hidden_act=pooler_act, name="pooler")
    sequence = of_tokens(encoded, mix_layer_norm=mix_layer_norm)
    if encoded.layers is not None:
        return pooler(masks.mean(sequence, batch["attention_mask"])[:, None])
    return pooler(sequence if encoded.summary is None else encoded.summary[:, None])
