"""GroupedStack equals a Stack whose layers have the parameters of their group."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.grouped_stack import GroupedStack, group_of_layers
from bertjax.layers.stack import Stack

B, L, D, I = 2, 5, 6, 2  # noqa: E741 - blocks of a layer, as in the docstrings
MASK = masks.padding(jnp.arange(L) < jnp.array([[3], [5]]))


def grouped(num_layers, num_groups, dropout=0.0, **fields):
    block = PostNormBlock(SelfAttention(3, dropout), FeedForward(11), dropout)
    return GroupedStack(block, num_layers, num_groups, I, **fields)


@pytest.fixture
def x(random):
    return random(B, L, D)


def gradient(module, params, x, probe, **options):
    def loss(params):
        out, states = module.apply(params, x, MASK, **options)
        return jnp.vdot(out, probe), (out, states)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)


@pytest.mark.parametrize(
    ("layers", "groups"), [([0, 0, 0], 1), ([0, 1, 2], 3), ([0, 0, 1], 2), ([0, 0, 1, 1], 2)]
)
def test_layers_are_divided_into_groups(layers, groups):
    assert group_of_layers(len(layers), groups) == layers


@pytest.mark.parametrize(
    ("layers", "groups"),
    [
        ([0, 0, 1], 2),  # groups of two sizes: two scans
        pytest.param([0, 0, 1, 1], 2, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_it_equals_a_stack_with_the_parameters_of_its_groups(layers, groups, x, random, randomized):
    module, probe = grouped(len(layers), groups, keep_hidden_states=True), random(B, L, D)
    params = randomized(module, x, MASK, train=False)
    plain = Stack(module.block, len(layers) * I, keep_hidden_states=True)
    blocks = [(group, inner) for group in layers for inner in range(I)]
    copied = jax.tree.map(
        lambda leaf: jnp.stack([leaf[place] for place in blocks]), params["params"]["group"]
    )
    (_, got), own = gradient(module, params, x, probe, train=False)
    (_, (out, states)), expected_gradients = gradient(
        plain, {"params": {"block": copied}}, x, probe, train=False
    )
    for found, expected in zip(got, (out, states[I - 1 :: I]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    # The gradient of a group is the sum over the layers that apply it.
    summed = jax.tree.map(jnp.zeros_like, params["params"]["group"])
    for number, place in enumerate(blocks):
        summed = jax.tree.map(
            lambda total, leaf, at=place, n=number: total.at[at].add(leaf[n]),
            summed,
            expected_gradients["params"]["block"],
        )
    pairs = zip(jax.tree.leaves(own["params"]["group"]), jax.tree.leaves(summed), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        assert np.abs(expected).max() > 0


@pytest.mark.slow
def test_gradients_do_not_depend_on_unrolling_and_remat(x, random, randomized):
    params, probe = randomized(grouped(3, 2), x, MASK, train=False), random(B, L, D)
    options = {"train": True, "rngs": {"dropout": jax.random.key(5)}}
    _, expected = gradient(grouped(3, 2, 0.3), params, x, probe, **options)
    for fields in ({"unroll": 3}, {"remat": "full"}):
        _, found = gradient(grouped(3, 2, 0.3, **fields), params, x, probe, **options)
        for pair in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-4)


def test_dropout_differs_between_layers_of_a_group(x, randomized):
    module = grouped(4, 2, 0.5, keep_hidden_states=True)
    params = jax.tree.map(jnp.zeros_like, randomized(module, x, MASK, train=False))
    group = params["params"]["group"]
    # Blocks that only normalise: the next one changes nothing except by its dropout.
    for norm in ("attention_norm", "feed_forward_norm"):
        group[norm]["scale"] += 1.0
    group["feed_forward"]["output"]["bias"] += jnp.arange(1.0, D + 1)
    rngs = {"dropout": jax.random.key(2)}
    _, states = module.apply(params, x, MASK, train=True, rngs=rngs)
    assert np.asarray(states[1:] != states[:-1]).any(axis=(1, 2, 3)).all()


def test_names_and_initial_values_of_parameters(x):
    boxed = grouped(3, 2).init(jax.random.key(0), x, MASK, train=False)["params"]["group"]
    kernel = boxed["attention"]["query"]["kernel"]
    assert (kernel.names, kernel.value.shape) == (
        (None, "layers", "embed", "heads", "kv"),
        (2, I, D, 3, 2),
    )
    values = np.asarray(kernel.value)
    assert len(np.unique(values)) == values.size


def test_an_unknown_remat_policy(x):
    with pytest.raises(UserError, match="no remat policy 'ful': did you mean 'full'"):
        grouped(3, 2, remat="ful").init(jax.random.key(0), x, MASK, train=False)
