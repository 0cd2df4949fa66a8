"""Recurrent layers against a loop over tokens: padding, clipping, carried states."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.lstm import BidirectionalStack, State

B, L, N, F, P = 3, 7, 2, 5, 4
STACK = BidirectionalStack(N, F, P, cell_clip=0.8, proj_clip=0.6)
LENGTHS = np.array([7, 4, 1])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def one_direction(params, x, cell, hidden, cell_clip, proj_clip):
    """A layer over one text, token by token; a limit of 0 is no limit."""
    outputs = []
    for token in x:
        gates = np.einsum("e,egf->gf", token, params["input"]["kernel"]) + params["input"]["bias"]
        gates = gates + np.einsum("p,pgf->gf", hidden, params["recurrent"])
        admit, candidate, forget, emit = gates
        cell = sigmoid(forget + 1) * cell + sigmoid(admit) * np.tanh(candidate)
        cell = np.clip(cell, -cell_clip, cell_clip) if cell_clip else cell
        hidden = (sigmoid(emit) * np.tanh(cell)) @ params["project"]
        hidden = np.clip(hidden, -proj_clip, proj_clip) if proj_clip else hidden
        outputs.append(hidden)
    return np.array(outputs), cell, hidden


@pytest.fixture(scope="module")
def given():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(B, L, P)).astype(np.float32)
    attention_mask = np.arange(L) < LENGTHS[:, None]
    cell, hidden = (generator.normal(size=(B, N, 2, width)) for width in (F, P))
    state = State(jnp.asarray(cell, jnp.float32), jnp.asarray(hidden, jnp.float32))
    return jnp.asarray(x), jnp.asarray(attention_mask), state


@pytest.fixture(scope="module")
def variables(given):
    shapes = jax.eval_shape(lambda: STACK.init(jax.random.key(0), *given, train=False))
    generator = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), jnp.float32),
        nn.meta.unbox(shapes),
    )


@pytest.fixture(scope="module")
def run(variables):
    return jax.jit(lambda *arguments: STACK.apply(variables, *arguments, train=False))


@pytest.mark.parametrize(
    "fields",
    [{}, {"without_skip_connections": True}, {"cell_clip": 0.0}, {"proj_clip": 0.0}],
    ids=str,
)
def test_it_equals_a_loop_over_tokens(variables, given, fields):
    x, state = np.asarray(given[0]), given[2]
    stack = STACK.clone(**fields)
    layers, after = stack.apply(variables, *given, train=False)
    for row, length in enumerate(LENGTHS):
        inputs = [x[row, :length], x[row, :length]]
        for layer in range(N):
            for side, name in enumerate(("forward", "backward")):
                params = jax.tree.map(np.asarray, variables["params"][f"{name}_{layer}"])
                text = inputs[side][:: -1 if side else 1]
                begin = (np.asarray(s[row, layer, side]) for s in (state.cell, state.hidden))
                made, cell, hidden = one_direction(
                    params, text, *begin, stack.cell_clip, stack.proj_clip
                )
                made = made[:: -1 if side else 1]
                adds = layer and not stack.without_skip_connections
                inputs[side] = made + inputs[side] if adds else made
                np.testing.assert_allclose(after.cell[row, layer, side], cell, atol=1e-5)
                np.testing.assert_allclose(after.hidden[row, layer, side], hidden, atol=1e-5)
            expected = np.concatenate(inputs, axis=-1)
            np.testing.assert_allclose(layers[layer][row, :length], expected, atol=1e-5)


def test_padding_has_no_effect(run, given):
    x, attention_mask, state = given
    layers, after = run(x, attention_mask, state)
    other, same = run(jnp.where(attention_mask[..., None], x, 9.0), attention_mask, state)
    np.testing.assert_array_equal(layers[-1], other[-1])
    np.testing.assert_array_equal(after.cell, same.cell)
    assert not np.asarray(layers[-1])[~np.asarray(attention_mask)].any()


def test_two_segments_equal_one_text_in_the_forward_direction(run, given):
    x, attention_mask, state = given
    attention_mask = jnp.ones_like(attention_mask)
    whole, _ = run(x, attention_mask, state)
    first, after = run(x, attention_mask & (jnp.arange(L) < 4), state)
    rest, _ = run(jnp.roll(x, -4, axis=1), attention_mask & (jnp.arange(L) < 3), after)
    np.testing.assert_allclose(first[-1][:, :4, :P], whole[-1][:, :4, :P], atol=1e-6)
    np.testing.assert_allclose(rest[-1][:, :3, :P], whole[-1][:, 4:, :P], atol=1e-6)
