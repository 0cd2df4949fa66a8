"""The initial train state."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.bert import Model
from bertjax.objectives import sentence_pair
from bertjax.pretrainer import Pretrainer
from bertjax.train import optimizer
from bertjax.train.state import create, unbox

PRETRAINER = Pretrainer(Model(17, 6, 2, 2, 5), {"sentence_pair": sentence_pair.Objective})


def batch_of(value):
    return {
        "input_ids": jnp.full((1, 7), value, jnp.int32),
        "attention_mask": jnp.ones((1, 7), bool),
        "pair_label": jnp.zeros(1, jnp.int32),
    }


@pytest.fixture(scope="module")
def boxed():
    """Which batch it is does not matter, so one compiled function serves all."""
    return jax.jit(lambda seed, batch: create(PRETRAINER, optimizer.make("adamw"), batch, seed))


def test_a_state_starts_at_step_zero(boxed):
    state = unbox(boxed(0, batch_of(0)))
    for count in (state.step, state.skipped, state.skipped_in_a_row):
        assert count.dtype == jnp.int32
        assert count == 0
    assert state.carry is None
    assert set(state.params) == {"encoder", "sentence_pair"}
    moments = state.opt_state[1]
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves((moments.mu, moments.nu)))


def test_parameters_and_both_moments_name_their_axes_until_they_are_unboxed(boxed):
    state = boxed(0, batch_of(0))
    for tree in (state.params, state.opt_state[1].mu, state.opt_state[1].nu):
        kernel = tree["encoder"]["layers"]["block"]["attention"]["query"]["kernel"]
        assert kernel.names == ("layers", "embed", "heads", "kv")
    plain = unbox(state)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(plain))
    assert jax.tree.structure(plain.params) == jax.tree.structure(nn.meta.unbox(state.params))


def test_initial_parameters_depend_on_the_seed_and_not_on_the_batch(boxed):
    expected = unbox(boxed(0, batch_of(0)))
    same = unbox(boxed(0, batch_of(5)))
    jax.tree.map(np.testing.assert_array_equal, same, expected)
    other = unbox(boxed(1, batch_of(0)))
    kernel = ("encoder", "pooler", "dense", "kernel")
    params, expected_params = other.params, expected.params
    for name in kernel:
        params, expected_params = params[name], expected_params[name]
    assert np.mean(params != expected_params) > 0.99
