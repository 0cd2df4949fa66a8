"""Dropout: rate, scaling, masks and keys."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers.dropout import Dropout, per_example_key, split_per_example_key


def drop(rate, x, key=0, train=True):
    return Dropout(rate).apply({}, x, train=train, rngs={"dropout": jax.random.key(key)})


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_share_is_zeroed_and_the_rest_is_scaled_up(rate):
    y = np.asarray(drop(rate, jnp.ones(100_000)))
    deviation = (rate * (1 - rate) / 100_000) ** 0.5
    assert np.mean(y == 0) == pytest.approx(rate, abs=5 * deviation)
    # The rate is a multiple of 2**-16, and the scale is exact for that multiple.
    share = round(rate * 65536) / 65536
    np.testing.assert_allclose(np.unique(y), [0, 1 / (1 - share)], rtol=1e-6)


def test_rows_and_neighbours_are_independent():
    kept = np.asarray(drop(0.5, jnp.ones((300, 301)))) > 0
    for other in (kept[1:], kept[:, 1:]):
        pairs = np.mean(kept[: other.shape[0], : other.shape[1]] & other)
        assert pairs == pytest.approx(0.25, abs=0.01)


def test_evaluation_and_rate_zero_change_nothing_and_need_no_key(random):
    x = random(5, 7)
    np.testing.assert_array_equal(Dropout(0.5).apply({}, x, train=False), x)
    np.testing.assert_array_equal(Dropout(0.0).apply({}, x, train=True), x)


def test_masks_are_a_function_of_the_key():
    x = jnp.ones(1000)
    np.testing.assert_array_equal(drop(0.5, x, key=3), drop(0.5, x, key=3))
    assert np.any(drop(0.5, x, key=3) != drop(0.5, x, key=4))


class Twice(nn.Module):
    """Two dropouts of the same input."""

    @nn.compact
    def __call__(self, x):
        return Dropout(0.5)(x, train=True), Dropout(0.5)(x, train=True)


def drop_by_rows(keys):
    rngs = {"dropout": per_example_key(jax.random.key(7), keys)}
    return Twice().apply({}, jnp.ones((len(keys), 101)), rngs=rngs)


def test_masks_differ_between_layers_and_rows():
    first, second = drop_by_rows(jax.random.split(jax.random.key(1), 3))
    masks = [tuple(row.tolist()) for row in (*np.asarray(first), *np.asarray(second))]
    assert len(set(masks)) == 6


def test_the_mask_of_a_row_does_not_depend_on_other_rows():
    keys = jax.random.split(jax.random.key(1), 3)
    for whole, alone in zip(drop_by_rows(keys), drop_by_rows(keys[2:]), strict=True):
        np.testing.assert_array_equal(whole[2:], alone)


def test_dropped_elements_have_no_gradient(random):
    x = random(50)
    gradient = jax.grad(lambda x: drop(0.25, x).sum())(x)
    np.testing.assert_allclose(gradient, np.where(drop(0.25, x) == 0, 0, 1 / 0.75), rtol=1e-6)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_an_impossible_rate(rate):
    with pytest.raises(UserError, match=f"dropout rate: got {rate}, expected a number in"):
        drop(rate, jnp.ones(3))


def test_a_per_example_key_goes_through_scan_remat_jit_and_vmap():
    """The masks of a layer depend on its own key and the keys of the examples."""

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x, Dropout(0.5)(x, train=True)

    class Layers(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = nn.remat(Layer)
            split = {"params": False, "dropout": True}
            return nn.scan(layer, split_rngs=split, length=5)(name="layer")(x, None)[1]

    key, keys = jax.random.key(3), jax.random.split(jax.random.key(4), 6)
    x = jnp.ones((6, 41))

    def masks(x, keys):
        return Layers().apply({}, x, rngs={"dropout": per_example_key(key, keys)})

    whole = jax.jit(masks)(x, keys)
    assert len({tuple(row.tolist()) for row in np.asarray(whole).reshape(-1, 41)}) == 5 * 6
    parts = jax.vmap(masks)(x.reshape(2, 3, 41), keys.reshape(2, 3))
    np.testing.assert_array_equal(jnp.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_a_per_example_key_is_split_as_its_first_key(impl):
    key, keys = jax.random.key(5, impl=impl), jax.random.split(jax.random.key(6, impl=impl), 3)
    both = per_example_key(key, keys)
    changed = jax.random.fold_in(jax.random.split(both, (2, 3))[1, 2], 7)
    first, examples = split_per_example_key(changed)
    expected = jax.random.fold_in(jax.random.split(key, (2, 3))[1, 2], 7)
    np.testing.assert_array_equal(jax.random.key_data(first), jax.random.key_data(expected))
    np.testing.assert_array_equal(jax.random.key_data(examples), jax.random.key_data(keys))
    np.testing.assert_array_equal(jax.random.uniform(both, (5,)), jax.random.uniform(key, (5,)))
    assert split_per_example_key(key) == (key, None)
