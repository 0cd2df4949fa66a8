"""Random bits beside those of jax.random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.random_bits import bits16

ROUNDS = 20  # of Threefry


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 128, 17)])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_bits_are_those_of_jax(shape, impl):
    key = jax.random.fold_in(jax.random.key(5, impl=impl), 11)
    found = jax.jit(bits16, static_argnums=1)(key, shape)
    np.testing.assert_array_equal(found, jax.random.bits(key, shape, jnp.uint16))
    assert found.dtype == jnp.uint16


def test_bits_of_several_keys_at_once():
    keys = jax.random.split(jax.random.key(3), 4)
    found = jax.vmap(lambda key: bits16(key, (2, 9)))(keys)
    wanted = [jax.random.bits(key, (2, 9), jnp.uint16) for key in keys]
    np.testing.assert_array_equal(found, np.stack(wanted))


def test_bits_that_are_read_often_are_made_once():
    """Left to itself XLA merges a copy of the cipher with each reader."""

    def function(key, x):
        kept = bits16(key, x.shape) > 6000
        return [jnp.where(kept, x, 0).sum(axis) for axis in (0, 1)], jnp.where(kept, x, 1) @ x.T

    x = jnp.ones((64, 32))
    program = jax.jit(function).lower(jax.random.key(0), x).compile().as_text()
    of_all = [line for line in program.splitlines() if "= u32[64,32]" in line]
    assert sum(" xor(" in line for line in of_all) == ROUNDS + 1  # and the two words in one
