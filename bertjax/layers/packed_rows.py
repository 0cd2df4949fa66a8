"""Encode several short sequences in one row, without attention between them.

Krell et al. 2021, "Efficient sequence packing without cross-contamination", for fine-tuning: heads
receive outputs with one row per sequence, as without packing.
"""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from bertjax.interfaces import Batch, Params
from bertjax.layers import masks
from bertjax.layers.heads import last_token
from bertjax.pretrainer import Encoded, Encoder, apply_encoder

PACKED_TOKENS = "packed_tokens"
"""Batch key; see `interfaces.py`. A batch without it is encoded as it is."""


@dataclasses.dataclass(frozen=True)
class PackedEncoding:
    """Encodes batches with `packed_tokens`; an `encode` of `pretrainer.Pretrainer`.

    Attributes:
      num_examples: G, the number of consecutive examples that share rows.
      encode: Encodes the packed rows.
    """

    num_examples: int
    encode: Callable[..., Encoded] = apply_encoder

    def __call__(self, encoder: Encoder, batch: Batch, *, train: bool) -> Encoded:
        # Parameters are initialised with a single example.
        if PACKED_TOKENS not in batch or encoder.is_initializing():
            return self.encode(encoder, batch, train=train)
        shape = batch["input_ids"].shape
        packed_GS = batch[PACKED_TOKENS].reshape(shape[0] // self.num_examples, -1)
        inputs = {
            name: _take(values, packed_GS, (-1, shape[1]))
            for name, values in batch.items()
            if name != PACKED_TOKENS and values.shape[:2] == shape
        }
        example_GS, position_GS = jnp.divmod(packed_GS, shape[1])
        rows = inputs["input_ids"].shape
        inputs["pack_ids"] = (example_GS + 1).reshape(rows)
        inputs["attention_mask"] = inputs["pack_ids"] > 0
        position_ids = jnp.where(packed_GS < 0, 0, position_GS).reshape(rows)
        inputs.setdefault("position_ids", position_ids)
        encoded = self.encode(encoder, inputs, train=train)
        return _separate(encoder, encoded, batch["attention_mask"], _inverse(packed_GS, shape))


def encode(encoder: Encoder, params: Params, batch: Batch, num_groups: int) -> Encoded:
    """Encodes a batch, packed or not, for inference.

    Args:
      encoder: The module.
      params: Its parameters.
      batch: If it is packed, of `num_groups` groups of consecutive sequences that share rows.
      num_groups: Number of groups.
    """
    encode = PackedEncoding(len(batch["input_ids"]) // num_groups)
    return nn.apply(encode, encoder)({"params": params}, batch, train=False)


def _take(values: Array, index: Int[Array, "G S"], shape: tuple[int, int]) -> Array:
    """Takes rows of `values` [B L ...] by their index within a group; zeros where it is below 0.

    The results are reshaped to [*shape ...].
    """
    groups, size = index.shape
    grouped = values.reshape(groups, -1, *values.shape[2:])
    # Each index occurs once, so that the gradient does not need to add; those outside are dropped.
    outside = grouped.shape[1] + jnp.arange(size)
    index = jnp.where(index < 0, outside, index)

    def take(rows: Array, index: Array) -> Array:
        return rows.at[index].get(mode="fill", fill_value=0, unique_indices=True)

    return jax.vmap(take)(grouped, index).reshape(*shape, *values.shape[2:])


def _inverse(packed: Int[Array, "G S"], shape: tuple[int, int]) -> Int[Array, "G T"]:
    """The slot of each token of a group's T tokens; -1 for padding."""
    groups, size = packed.shape
    tokens = shape[0] * shape[1] // groups
    # An index of -1 would be the last token.
    packed = jnp.where(packed < 0, tokens, packed)

    def invert(tokens_of_slots: Array) -> Array:
        return jnp.full(tokens, -1).at[tokens_of_slots].set(jnp.arange(size), mode="drop")

    return jax.vmap(invert)(packed)


def _separate(
    encoder: Encoder, encoded: Encoded, attention_mask: Array, slots: Int[Array, "G T"]
) -> Encoded:
    """Returns the outputs with one row per sequence."""

    def separate(values: Array) -> Array:
        return _take(values, slots, attention_mask.shape)

    sequence = separate(encoded.sequence)
    changes = {"sequence": sequence}
    for name in ("hidden_states", "layers"):
        states = getattr(encoded, name)
        if states is not None:
            changes[name] = tuple(map(separate, states))
    if encoded.pooled is not None:
        changes["pooled"] = encoder.pooler(sequence)
    if encoded.cls_state is not None:
        changes["cls_state"] = last_token(sequence, masks.padding_mask(attention_mask))
    return encoded.replace(**changes)
