"""SharedStack equals an unrolled stack with copied parameters, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.stack import SharedStack, Stack

B, L, D, N = 2, 5, 6, 3
MASK = masks.padding(jnp.arange(L) < jnp.array([[3], [5]]))
PARTS = ("attention", "attention_norm", "feed_forward", "feed_forward_norm")
SHARING = [PARTS, PARTS[:2], ()]


def block(dropout=0.0):
    return PostNormBlock(SelfAttention(3, dropout), FeedForward(11), dropout)


def shared_stack(shared, **fields):
    return SharedStack(block(), N, shared, **fields)


@pytest.fixture
def x(random):
    return random(B, L, D)


def copied(params, shared):
    """The parameters of a `Stack` in which every layer has a copy of the shared ones."""
    own, one = params["params"].get("block", {}), params["params"].get("shared", {})
    assert set(one) == set(shared)
    assert set(own) == set(PARTS) - set(shared)
    copies = jax.tree.map(lambda leaf: jnp.stack([leaf] * N), one)
    return {"params": {"block": {**own, **copies}}}


@pytest.mark.parametrize(
    "shared",
    [
        pytest.param(parts, marks=() if 0 < len(parts) < 4 else pytest.mark.slow)
        for parts in SHARING
    ],
    ids=len,
)
def test_it_equals_a_stack_with_copied_parameters(shared, x, random, randomized):
    params = randomized(shared_stack(shared), x, MASK, train=False)
    probe = random(B, L, D)

    def by_sharing(params, x):
        out, states = shared_stack(shared, keep_hidden_states=True).apply(
            params, x, MASK, train=False
        )
        return jnp.vdot(out, probe), (out, states)

    def by_copying(params, x):
        out, states = Stack(block(), N, keep_hidden_states=True, unroll=N).apply(
            copied(params, shared), x, MASK, train=False
        )
        return jnp.vdot(out, probe), (out, states)

    got, expected = (
        jax.jit(jax.value_and_grad(function, (0, 1), has_aux=True))(params, x)
        for function in (by_sharing, by_copying)
    )
    assert len(jax.tree.leaves(got)) == len(jax.tree.leaves(expected))
    for value, expected_value in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, expected_value, rtol=1e-4, atol=1e-4)
        assert np.abs(expected_value).max() > 0


def test_names_and_axes_of_parameters(x):
    boxed = jax.eval_shape(
        lambda: shared_stack(PARTS[:2]).init(jax.random.key(0), x, MASK, train=False)
    )["params"]
    kernel = boxed["shared"]["attention"]["query"]["kernel"]
    assert (kernel.names, kernel.value.shape) == (("embed", "heads", "kv"), (D, 3, 2))
    kernel = boxed["block"]["feed_forward"]["output"]["kernel"]
    assert (kernel.names, kernel.value.shape) == (("layers", "mlp", "embed"), (N, 11, D))


def test_unshared_parameters_are_initialised_differently(x):
    params = shared_stack(PARTS[:2]).init(jax.random.key(0), x, MASK, train=False)["params"]
    kernel = np.asarray(params["block"]["feed_forward"]["output"]["kernel"].value)
    assert len(np.unique(kernel)) == kernel.size
    assert np.std(kernel) == pytest.approx(0.02 * 0.88, rel=0.3)


@pytest.mark.slow
def test_gradients_do_not_depend_on_unrolling_and_remat(x, random, randomized):
    params, probe = randomized(shared_stack(PARTS), x, MASK, train=False), random(B, L, D)

    def gradient(**fields):
        def loss(params):
            module = SharedStack(block(0.3), N, PARTS, **fields)
            rngs = {"dropout": jax.random.key(5)}
            return jnp.vdot(module.apply(params, x, MASK, train=True, rngs=rngs)[0], probe)

        return jax.jit(jax.grad(loss))(params)

    expected = jax.tree.leaves(gradient())
    for fields in ({"unroll": N}, {"remat": "full"}):
        for pair in zip(jax.tree.leaves(gradient(**fields)), expected, strict=True):
            np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-4)


def test_dropout_differs_from_layer_to_layer(x, randomized):
    module = SharedStack(block(0.5), N, PARTS, keep_hidden_states=True)
    params = randomized(module, x, MASK, train=False)
    # Blocks that only normalise: a second one changes nothing but for its dropout.
    params = jax.tree.map(jnp.zeros_like, params)
    ones = jnp.ones(D)
    for norm in ("attention_norm", "feed_forward_norm"):
        params["params"]["shared"][norm]["scale"] = ones
    params["params"]["shared"]["feed_forward"]["output"]["bias"] = jnp.arange(1.0, D + 1)
    rngs = {"dropout": jax.random.key(2)}
    _, states = module.apply(params, x, MASK, train=True, rngs=rngs)
    added = np.asarray(states[1:] != states[:-1])
    assert added.any(axis=(1, 2, 3)).all()
    _, again = module.apply(params, x, MASK, train=True, rngs=rngs)
    np.testing.assert_array_equal(states, again)


def test_invalid_settings_are_refused(x):
    with pytest.raises(UserError, match="no remat policy 'ful': did you mean 'full'"):
        shared_stack(PARTS, remat="ful").init(jax.random.key(0), x, MASK, train=False)
    with pytest.raises(ValueError, match="a layer has no attn"):
        shared_stack(("attn",)).init(jax.random.key(0), x, MASK, train=False)
