"""Columns of a KV cache and their masks, also for left-padded rows."""

import jax.numpy as jnp
import numpy as np

from bertjax.layers import kv_cache as caches
from bertjax.layers import masks

N, B, L, H, K = 2, 2, 3, 1, 4
ATTENTION_MASK = jnp.array([[False, True, True], [True, True, True]])


def consecutive(start, length):
    values = start + jnp.arange(N * B * length * H * K, dtype=jnp.float32)
    return values.reshape(N, B, length, H, K)


def test_columns_are_appended():
    cache = caches.init_cache(consecutive(0, L), consecutive(100, L), ATTENTION_MASK, 2)
    assert cache.keys.shape == (N, B, H, K, L + 2)
    assert cache.values.shape == (N, B, H, L + 2, K)
    later = cache.append(consecutive(500, 1), consecutive(900, 1), jnp.ones((B, 1), bool))
    np.testing.assert_array_equal(jnp.moveaxis(later.keys[..., :L], 4, 2), consecutive(0, L))
    np.testing.assert_array_equal(later.keys[..., L], consecutive(500, 1)[:, :, 0])
    np.testing.assert_array_equal(later.values[..., L, :], consecutive(900, 1)[:, :, 0])
    np.testing.assert_array_equal(later.filled.sum(axis=1), [3, 4])
    assert int(later.end) == L + 1


def test_positions_count_the_tokens_of_a_row():
    np.testing.assert_array_equal(caches.token_positions(ATTENTION_MASK), [[0, 0, 1], [0, 1, 2]])
    cache = caches.init_cache(consecutive(0, L), consecutive(0, L), ATTENTION_MASK, 1)
    np.testing.assert_array_equal(cache.positions(jnp.ones((B, 1), bool)), [[2], [3]])


def test_new_tokens_attend_to_the_past_and_not_to_empty_columns():
    cache = caches.init_cache(consecutive(0, L), consecutive(0, L), ATTENTION_MASK, 1)
    mask = cache.mask(masks.padding(jnp.ones((B, 1), bool))).array()
    np.testing.assert_array_equal(mask[0, 0, 0], [False, True, True, False, True])
    np.testing.assert_array_equal(mask[1, 0, 0], [True, True, True, False, True])


def test_rows_are_gathered_in_any_order():
    cache = caches.init_cache(consecutive(0, L), consecutive(50, L), ATTENTION_MASK, 1)
    gathered = cache.take(jnp.array([1, 1, 0]))
    np.testing.assert_array_equal(gathered.keys[:, 0], cache.keys[:, 1])
    np.testing.assert_array_equal(gathered.values[:, 2], cache.values[:, 0])
    np.testing.assert_array_equal(gathered.filled[1], cache.filled[1])
