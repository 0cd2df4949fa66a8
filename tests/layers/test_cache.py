"""Columns of a KV cache and their masks, also for left-padded rows."""

import jax.numpy as jnp
import numpy as np

from bertjax.layers import kv_cache as caches
from bertjax.layers import masks

N, B, L, H, K = 2, 2, 3, 1, 4
THERE = jnp.array([[False, True, True], [True, True, True]])


def made(start, length):
    values = start + jnp.arange(N * B * length * H * K, dtype=jnp.float32)
    return values.reshape(N, B, length, H, K)


def test_columns_are_appended():
    cache = caches.init_cache(made(0, L), made(100, L), THERE, 2)
    assert cache.keys.shape == (N, B, H, K, L + 2)
    assert cache.values.shape == (N, B, H, L + 2, K)
    later = cache.append(made(500, 1), made(900, 1), jnp.ones((B, 1), bool))
    np.testing.assert_array_equal(jnp.moveaxis(later.keys[..., :L], 4, 2), made(0, L))
    np.testing.assert_array_equal(later.keys[..., L], made(500, 1)[:, :, 0])
    np.testing.assert_array_equal(later.values[..., L, :], made(900, 1)[:, :, 0])
    np.testing.assert_array_equal(later.filled.sum(axis=1), [3, 4])
    assert int(later.end) == L + 1


def test_positions_count_the_tokens_of_a_row():
    np.testing.assert_array_equal(caches.token_positions(THERE), [[0, 0, 1], [0, 1, 2]])
    cache = caches.init_cache(made(0, L), made(0, L), THERE, 1)
    np.testing.assert_array_equal(cache.positions(jnp.ones((B, 1), bool)), [[2], [3]])


def test_new_tokens_attend_to_the_past_and_not_to_empty_columns():
    cache = caches.init_cache(made(0, L), made(0, L), THERE, 1)
    mask = cache.mask(masks.padding(jnp.ones((B, 1), bool))).array()
    np.testing.assert_array_equal(mask[0, 0, 0], [False, True, True, False, True])
    np.testing.assert_array_equal(mask[1, 0, 0], [True, True, True, False, True])


def test_rows_are_gathered_in_any_order():
    cache = caches.init_cache(made(0, L), made(50, L), THERE, 1)
    taken = cache.take(jnp.array([1, 1, 0]))
    np.testing.assert_array_equal(taken.keys[:, 0], cache.keys[:, 1])
    np.testing.assert_array_equal(taken.values[:, 2], cache.values[:, 0])
    np.testing.assert_array_equal(taken.filled[1], cache.filled[1])
