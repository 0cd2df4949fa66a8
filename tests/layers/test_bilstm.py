"""BiLSTM against a loop over tokens; padding has no effect."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit as sigmoid

from bertjax.errors import UserError
from bertjax.layers.lstm import BiLSTM

B, L, E, F = 3, 7, 5, 4
LENGTHS = np.array([7, 4, 1])
ATTENTION_MASK = jnp.asarray(np.arange(L) < LENGTHS[:, None])
MODULE = BiLSTM(2, F)


def one_direction(params, x):
    """Hochreiter & Schmidhuber 1997 with a forget gate bias of 1, token by token."""
    cell = hidden = np.zeros(F)
    outputs = []
    for token in x:
        gates = np.einsum("e,egf->gf", token, params["input"]["kernel"]) + params["input"]["bias"]
        gates = gates + np.einsum("h,hgf->gf", hidden, params["recurrent"])
        admit, candidate, forget, emit = gates
        cell = sigmoid(forget + 1) * cell + sigmoid(admit) * np.tanh(candidate)
        hidden = sigmoid(emit) * np.tanh(cell)
        outputs.append(hidden)
    return np.array(outputs)


@pytest.fixture
def x(random):
    return random(B, L, E)


@pytest.fixture(scope="module")
def variables():
    shapes = jax.eval_shape(
        lambda: MODULE.init(jax.random.key(0), jnp.zeros((B, L, E)), ATTENTION_MASK, train=False)
    )
    generator = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(0, 0.5, leaf.shape), jnp.float32),
        nn.meta.unbox(shapes),
    )


@pytest.fixture(scope="module")
def run(variables):
    return jax.jit(
        lambda x, attention_mask: MODULE.apply(variables, x, attention_mask, train=False)
    )


def test_it_equals_a_loop_over_the_tokens(variables, run, x):
    params = jax.tree.map(np.asarray, variables["params"])
    found = np.asarray(run(x, ATTENTION_MASK))
    assert found.shape == (B, L, 2 * F)
    for row, length in enumerate(LENGTHS):
        text = np.asarray(x[row, :length])
        for layer in range(2):
            forward = one_direction(params[f"forward_{layer}"], text)
            backward = one_direction(params[f"backward_{layer}"], text[::-1])[::-1]
            text = np.concatenate([forward, backward], axis=-1)
        np.testing.assert_allclose(found[row, :length], text, atol=1e-5)
        assert not found[row, length:].any()


def test_padding_has_no_effect(run, x):
    """Neither its content nor its length."""
    found = run(x, ATTENTION_MASK)
    np.testing.assert_array_equal(
        found, run(jnp.where(ATTENTION_MASK[..., None], x, 9.0), ATTENTION_MASK)
    )
    longer = jnp.pad(x, ((0, 0), (0, 6), (0, 0)), constant_values=3.0)
    found_longer = run(longer, jnp.pad(ATTENTION_MASK, ((0, 0), (0, 6))))
    np.testing.assert_allclose(found_longer[:, :L], found, atol=1e-6)


def test_every_token_affects_all_others_and_padding_none(run, x):
    def through(x):
        return run(x, ATTENTION_MASK)

    moved = np.abs(np.asarray(jax.jit(jax.jacobian(through))(x))).sum(axis=(2, 5))
    pairs = np.asarray(ATTENTION_MASK)[:, :, None] & np.asarray(ATTENTION_MASK)[:, None]
    for row in range(B):
        np.testing.assert_array_equal(moved[row, :, row] > 0, pairs[row])


def test_zero_layers_are_the_identity_and_impossible_sizes_are_one_line(x):
    np.testing.assert_array_equal(BiLSTM(0, F).apply({}, x, ATTENTION_MASK, train=False), x)
    for layers, cells in ((-1, 4), (2, 0)):
        with pytest.raises(UserError, match=f"BiLSTM: got {layers} layers of {cells} cells"):
            BiLSTM(layers, cells).init(jax.random.key(0), x, ATTENTION_MASK, train=False)
