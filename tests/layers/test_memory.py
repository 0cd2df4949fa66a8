"""The memory of previous segments: the newest tokens of the same document."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.memory import Memory

N, B, T, L, D = 2, 3, 4, 3, 1


class Reader(nn.Module):
    """Recalls the memory, and stores the token ids as the input of every layer."""

    @nn.compact
    def __call__(self, batch):
        memory = Memory(T)
        recall = memory.recall(batch, N, D)
        tokens = batch["input_ids"].astype(jnp.float32)[None, ..., None]
        memory.keep(batch, recall, jnp.concatenate([tokens, -tokens]))
        return recall


def batch(ids, remembered, continues):
    return {
        "input_ids": jnp.asarray(ids),
        "memory_mask": jnp.asarray(remembered, bool),
        "is_continuation": jnp.asarray(continues, bool),
    }


FIRST = batch([[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 1, 1], [1, 1, 0], [0, 0, 1]], [0, 0, 0])
SECOND = batch(
    [[10, 11, 12], [13, 14, 15], [16, 17, 18]], [[0, 1, 1], [1, 1, 1], [0, 0, 0]], [1, 0, 1]
)


@pytest.fixture
def carry():
    shapes = jax.eval_shape(lambda: Reader().init(jax.random.key(0), FIRST))["carry"]
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def read(carry, batch):
    recall, changed = Reader().apply({"carry": carry}, batch, mutable=["carry"])
    return recall, changed["carry"]


def memory_ids(carry):
    """The token ids in the memory of every row, oldest first; checks that all layers agree."""
    memory = nn.meta.unbox(carry)["Memory_0"]
    states, filled = np.asarray(memory["states"]), np.asarray(memory["filled"])
    np.testing.assert_array_equal(states[:, 0][filled], -states[:, 1][filled])
    return [states[row, 0, filled[row], 0].tolist() for row in range(B)], filled


def test_the_newest_tokens_are_kept_in_order(carry):
    recall, carry = read(carry, FIRST)
    assert not recall.mask.any()
    numbers, filled = memory_ids(carry)
    assert numbers == [[1, 2, 3], [4, 5], [9]]
    assert filled.tolist() == [
        [False, True, True, True],
        [False, False, True, True],
        [False] * 3 + [True],
    ]
    recall, carry = read(carry, SECOND)
    assert recall.mask.tolist() == [[False, True, True, True], [False] * 4, [False] * 3 + [True]]
    # The first row drops its oldest token, the second its other text; the third has no tokens.
    assert memory_ids(carry)[0] == [[2, 3, 11, 12], [13, 14, 15], [9]]


def test_memory_requires_a_carry_and_is_continuation(carry):
    assert Reader().apply({}, FIRST).states is None
    plain = {"input_ids": FIRST["input_ids"]}
    assert Reader().apply({"carry": carry}, plain).states is None


def test_no_gradient_reaches_the_memory(carry):
    def total(scale):
        _, changed = read(carry, FIRST | {"input_ids": FIRST["input_ids"] * scale})
        return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(changed))

    assert jax.grad(total)(1.0) == 0
