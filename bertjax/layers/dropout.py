"""Dropout with 16 random bits per element, in half the time of the usual 32.

One Threefry block has the bits of four elements and can be sharded. `jax.random.bits` runs the
cipher once per element and keeps 16 of its 64 bits; on TPUs the cipher then takes longer than
attention, and on CPUs it is a loop through memory.
"""

import functools
import math
from collections.abc import Hashable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Bool, Float, Key, UInt16, UInt32

from bertjax.errors import UserError

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_GROUPS_OF_ROUNDS = 5
_PARTS = 4
_MAX_BLOCKS = 2**32
"""Number of blocks that one word can index; beyond it the upper word would not be zero."""


def bits16(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt16[Array, "..."]:
    """Samples 16 random bits for each element.

    The last axis is divided into four parts. The four elements at one index of the parts share a
    block: the low and the high half of its first word, then of its second.
    """
    if not shape:
        return bits16(key, (1,))[0]
    blocks = (*shape[:-1], -(-shape[-1] // _PARTS))
    if str(jax.random.key_impl(key)) != "threefry2x32" or math.prod(blocks) > _MAX_BLOCKS:
        return jax.random.bits(key, shape, jnp.uint16)
    words = jax.random.key_data(key)
    implementations = {"tpu": _per_block, "cpu": _call_per_element, "default": _per_element}
    bits = lax.platform_dependent(
        words,
        **{
            name: functools.partial(implementation, blocks)
            for name, implementation in implementations.items()
        },
    )
    return bits[..., : shape[-1]]


@functools.partial(jax.jit, static_argnums=0)
def _per_block(blocks: tuple[int, ...], key: UInt32[Array, "2"]) -> UInt16[Array, "..."]:
    """Computes every block once, for compilers that write several arrays in one pass."""
    counts = _counts(blocks)
    first, second = threefry2x32(key, jnp.zeros_like(counts), counts)
    halves = first, first >> 16, second, second >> 16
    return jnp.concatenate([half.astype(jnp.uint16) for half in halves], axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def _per_element(blocks: tuple[int, ...], key: UInt32[Array, "2"]) -> UInt16[Array, "..."]:
    """Computes the block of every element anew, for compilers that write one array per pass."""
    shape = (*blocks[:-1], _PARTS, blocks[-1])
    part = lax.broadcasted_iota(jnp.uint32, shape, len(blocks) - 1)
    counts = lax.broadcast_in_dim(_counts(blocks), shape, (*range(len(blocks) - 1), len(blocks)))
    word = lax.select(part < 2, *threefry2x32(key, jnp.zeros_like(counts), counts))
    half = (word >> ((part & 1) << 4)).astype(jnp.uint16)
    return half.reshape(*blocks[:-1], -1)


def _call_per_element(blocks: tuple[int, ...], key: UInt32[Array, "2"]) -> UInt16[Array, "..."]:
    # Not inlined: XLA would fuse a copy of all rounds into every consumer of the bits.
    with set_xla_metadata(inlineable="false"):
        return _per_element(blocks, key)


def _counts(shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """The index of each element in row-major order, as a sum over axes, which can be sharded."""
    counts, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        counts = counts + lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride)
        stride *= shape[axis]
    return counts


def threefry2x32(
    key: UInt32[Array, "2"] | tuple[UInt32[Array, ""], UInt32[Array, ""]],
    first: UInt32[Array, "*shape"],
    second: UInt32[Array, "*shape"],
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """The block cipher of two words, in 20 rounds (Salmon et al. 2011, section 4.2)."""
    words = key[0], key[1], key[0] ^ key[1] ^ _PARITY
    first, second = first + words[0], second + words[1]
    for group in range(_GROUPS_OF_ROUNDS):
        for distance in _ROTATIONS[group % 2]:
            first = first + second
            second = first ^ _rotate_left(second, distance)
        first = first + words[(group + 1) % 3]
        second = second + words[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def _rotate_left(x: UInt32[Array, "*shape"], distance: int) -> UInt32[Array, "*shape"]:
    return (x << np.uint32(distance)) | (x >> np.uint32(32 - distance))


_LEVELS = 1 << 16


def per_example_key(key: Key[Array, ""], example_keys: Key[Array, " B"]) -> Key[Array, ""]:
    """A key for the "dropout" stream of `apply` that carries a key of every example.

    Linen splits it and folds data into it as with `key`, so that each dropout of a model has its
    own key; `example_keys` are unchanged. `Dropout` combines both, so that the mask of an example
    depends neither on the mesh nor on the microbatch of the example.
    """
    words = jax.random.key_data(key)
    impl = _per_example_impl(jax.random.key_impl(key), words.size, len(example_keys))
    words = jnp.concatenate([words, jax.random.key_data(example_keys).reshape(-1)])
    return jax.random.wrap_key_data(words, impl=impl)


def split_per_example_key(
    key: Key[Array, ""],
) -> tuple[Key[Array, ""], Key[Array, " B"] | None]:
    """Returns the two arguments of `per_example_key`; (key, None) for any other key."""
    impl = jax.random.key_impl(key)
    if impl not in _PER_EXAMPLE:
        return key, None
    base, size = _PER_EXAMPLE[impl]
    words = jax.random.key_data(key)
    return tuple(
        jax.random.wrap_key_data(part, impl=base)
        for part in (words[:size], words[size:].reshape(-1, size))
    )


_PER_EXAMPLE: dict[Hashable, tuple[Hashable, int]] = {}
"""Implementations of `per_example_key`, each with that of the keys in it and their word count."""


@functools.cache
def _per_example_impl(base: Hashable, size: int, num_examples: int) -> Hashable:
    """A PRNG implementation whose keys are a key of `base`, followed by those of the examples."""

    def with_base(function):
        """Applies a function to the first key; appends those of the examples to every result."""

        def apply_to_first(words: UInt32[Array, " W"], argument) -> UInt32[Array, "*shape W"]:
            key = jax.random.wrap_key_data(words[:size], impl=base)
            new = jax.random.key_data(function(key, argument))
            rest = jnp.broadcast_to(words[size:], (*new.shape[:-1], words.size - size))
            return jnp.concatenate([new, rest], axis=-1)

        return apply_to_first

    def random_bits(words: UInt32[Array, " W"], width: int, shape: tuple[int, ...]) -> Array:
        key = jax.random.wrap_key_data(words[:size], impl=base)
        return jax.random.bits(key, shape, jnp.dtype(f"uint{width}"))

    def seed(_):
        raise TypeError("keys of examples cannot be made from a seed; use per_example_key")

    impl = define_prng_impl(
        key_shape=(size * (1 + num_examples),),
        seed=seed,
        split=with_base(jax.random.split),
        random_bits=random_bits,
        fold_in=with_base(jax.random.fold_in),
        name=f"{base} with keys of {num_examples} examples",
        tag="per-example",
    )
    _PER_EXAMPLE[impl] = base, size
    return impl


class DropoutMask(NamedTuple):
    """A sampled mask: which elements to keep, and the factor that scales them."""

    keep: Bool[Array, "*shape"]
    scale: float


class DropoutKeys(NamedTuple):
    """The keys of one dropout, from which its mask is sampled.

    Attributes:
      keys: Keys of the examples, or one key for the whole array.
      rate: Share of elements that are zeroed.
    """

    keys: Key[Array, "*E"]
    rate: float

    @property
    def threshold(self) -> int:
        """Elements whose 16 bits are below are zeroed."""
        return round(self.rate * _LEVELS)

    @property
    def scale(self) -> float:
        """The factor of the other elements."""
        return _LEVELS / (_LEVELS - self.threshold)

    @jax.named_scope("dropout")
    def mask(self, shape: tuple[int, ...]) -> DropoutMask:
        """Samples the mask; the first axis holds one or several rows of each example in turn.

        It may also hold several examples in each row, which has the key of one of them.
        """
        if self.keys.ndim == 0:
            bits = bits16(self.keys, shape)
        else:
            keys = self._of_rows(shape[0])
            rows = (shape[0] // len(keys), *shape[1:])
            bits = jax.vmap(lambda key: bits16(key, rows))(keys).reshape(shape)
        return DropoutMask(bits >= self.threshold, self.scale)

    def _of_rows(self, num_rows: int) -> Key[Array, " R"]:
        """The keys of the examples, or of as many of them as there are rows."""
        if num_rows >= len(self.keys):
            return self.keys
        return self.keys[np.arange(num_rows) * len(self.keys) // num_rows]

    def has_counters(self, shape: tuple[int, int, int, int]) -> bool:
        """Whether the bits of a mask are those of Threefry blocks with consecutive counts."""
        blocks = math.prod(shape) // _PARTS // min(self.keys.size, shape[0])
        is_threefry = str(jax.random.key_impl(self.keys)) == "threefry2x32"
        return is_threefry and shape[-1] % _PARTS == 0 and blocks <= _MAX_BLOCKS

    def counters(self, shape: tuple[int, int, int, int]) -> UInt32[Array, "B H 3"]:
        """For each matrix [L M] of a mask: two words of a key, and the count of its first block.

        The following blocks, in row-major order of [L M / 4], have the following counts. The mask
        must have `has_counters`.
        """
        batch, heads, length, width = shape
        keys = self.keys if self.keys.ndim == 0 else self._of_rows(batch)
        words_EW = jax.random.key_data(keys).reshape(-1, 2)
        rows = batch // len(words_EW)
        first_RH = _counts((rows, heads)) * np.uint32(length * (width // _PARTS))
        first_BH = jnp.tile(first_RH, (len(words_EW), 1))
        words_BHW = jnp.broadcast_to(jnp.repeat(words_EW, rows, axis=0)[:, None], (batch, heads, 2))
        return jnp.concatenate([words_BHW, first_BH[..., None]], axis=-1)


def apply_mask(x: Float[Array, "*shape"], mask: DropoutMask | None) -> Float[Array, "*shape"]:
    """Applies a dropout mask; None keeps all elements."""
    return x if mask is None else _apply_mask(x, *mask)


# The mask is the only residual: without the checkpoint, autodiff would also keep zeros like x.
@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=2)
def _apply_mask(
    x: Float[Array, "*shape"], keep: Bool[Array, "*shape"], scale: float
) -> Float[Array, "*shape"]:
    return jnp.where(keep, x * jnp.asarray(scale, x.dtype), 0)


class Dropout(nn.Module):
    """Dropout: zeroes random elements and scales up the others (Srivastava et al. 2014).

    Attributes:
      rate: Share of elements that are zeroed, to a precision of 2**-16.
      by_rows: Whether the first axis is the batch, or holds several rows of each example in turn;
        otherwise all examples share the array.
    """

    rate: float
    by_rows: bool = True

    def __call__(self, x: Float[Array, "*shape"], *, train: bool) -> Float[Array, "*shape"]:
        return apply_mask(x, self.sample_mask(x.shape, train=train))

    def sample_mask(self, shape: tuple[int, ...], *, train: bool) -> DropoutMask | None:
        """Samples the mask of an array; None keeps all elements.

        Raises:
          UserError: the rate is out of range.
        """
        keys = self.sample_keys(train=train)
        return None if keys is None else keys.mask(shape)

    @nn.compact
    def sample_keys(self, *, train: bool) -> DropoutKeys | None:
        """Returns the keys of a mask, once for each mask; None keeps all elements.

        Raises:
          UserError: the rate is out of range.
        """
        threshold = round(self.rate * _LEVELS)
        if not 0 <= threshold < _LEVELS:
            raise UserError(f"dropout rate: got {self.rate}, expected a number in [0, 1)")
        if not train or threshold == 0:
            return None
        key, example_keys = split_per_example_key(self.make_rng("dropout"))
        if example_keys is None or not self.by_rows:
            return DropoutKeys(key, self.rate)
        module = jax.random.bits(key, (), jnp.uint32)
        keys = jax.vmap(jax.random.fold_in, (0, None))(example_keys, module)
        return DropoutKeys(keys, self.rate)
