"""Random bits from Threefry blocks of jax.random, one block for four elements."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import dropout
from bertjax.layers.dropout import bits16

ROUNDS = 20  # of Threefry


def on_tpus(key, shape):
    return dropout._per_block((*shape[:-1], shape[-1] // 4), jax.random.key_data(key))


@pytest.mark.parametrize("shape", [(4,), (2, 3, 128, 20)])
@pytest.mark.parametrize("way", [bits16, on_tpus])
def test_four_elements_share_a_block_of_jax(shape, way):
    """JAX makes 32 bits of a block: one word exclusive-or the other."""
    key = jax.random.fold_in(jax.random.key(5), 11)
    found = np.asarray(jax.jit(way, static_argnums=1)(key, shape))
    assert (found.shape, found.dtype) == (shape, np.uint16)
    low, high, other_low, other_high = np.split(found.astype(np.uint32), 4, axis=-1)
    blocks = (*shape[:-1], shape[-1] // 4)
    expected = jax.random.bits(key, blocks, jnp.uint32)
    np.testing.assert_array_equal((high << 16 | low) ^ (other_high << 16 | other_low), expected)


@pytest.mark.parametrize(("shape", "whole"), [((7,), (8,)), ((2, 5), (2, 8)), ((3, 1), (3, 4))])
def test_the_last_blocks_may_be_used_in_part(shape, whole):
    key = jax.random.key(2)
    np.testing.assert_array_equal(bits16(key, shape), bits16(key, whole)[..., : shape[-1]])
    np.testing.assert_array_equal(on_tpus(key, whole), bits16(key, whole))


def test_a_scalar_has_random_bits():
    assert bits16(jax.random.key(2), ()) == bits16(jax.random.key(2), (1,))[0]


def test_other_generators_are_used_unchanged():
    key = jax.random.key(5, impl="rbg")
    np.testing.assert_array_equal(bits16(key, (3, 5)), jax.random.bits(key, (3, 5), jnp.uint16))


def test_bits_are_uniform_and_elements_of_a_block_are_independent():
    """Of 2**20 elements, each bit is set in half, and equals the next element's in half."""
    bits = np.asarray(jax.jit(bits16, static_argnums=1)(jax.random.key(0), (1024, 1024)))
    set_in = np.unpackbits(bits.view(np.uint8)[..., None], axis=-1).reshape(1024, 1024, 16)
    np.testing.assert_allclose(set_in.mean((0, 1)), 0.5, atol=5 * 0.5 / 1024)
    parts = np.split(set_in, 4, axis=1)
    for one, other in itertools.combinations(parts, 2):
        np.testing.assert_allclose((one == other).mean((0, 1)), 0.5, atol=5 * 0.5 / 512)


def test_bits_of_several_keys_at_once():
    keys = jax.random.split(jax.random.key(3), 4)
    found = jax.vmap(lambda key: bits16(key, (2, 9)))(keys)
    np.testing.assert_array_equal(found, np.stack([bits16(key, (2, 9)) for key in keys]))


def test_bits_with_several_readers_are_computed_once():
    """By default, XLA merges a copy of the cipher with each reader."""

    def function(key, x):
        kept = bits16(key, x.shape) > 6000
        return [jnp.where(kept, x, 0).sum(axis) for axis in (0, 1)], jnp.where(kept, x, 1) @ x.T

    x = jnp.ones((64, 32))
    program = jax.jit(function).lower(jax.random.key(0), x).compile().as_text()
    of_all = [line for line in program.splitlines() if "= u32[64,8]" in line]
    assert sum(" xor(" in line for line in of_all) == ROUNDS
