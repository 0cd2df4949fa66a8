"""Random bits beside those of jax.random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.random_bits import bits16


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
