"""The Universal Transformer: shared layers, halting by hand, padding."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers import masks
from bertjax.layers.adaptive_computation import time_and_position_signals
from bertjax.models.universal_transformer import Model

B, L, V, D, T = 2, 7, 31, 12, 4
MODEL = Model(V, D, T, 3, 20, output_hidden_states=True)
EVERY_STEP = MODEL.clone(halting_threshold=0.0)


@pytest.fixture(scope="module")
def batch():
    return {
        "input_ids": jnp.asarray(np.random.default_rng(0).integers(0, V, (B, L))),
        "attention_mask": jnp.asarray(np.arange(L) < np.array([[L], [4]])),
    }


@pytest.fixture(scope="module")
def variables(random_variables, batch):
    """The halting bias makes tokens take different numbers of steps."""
    variables = random_variables(MODEL, batch)
    variables["params"]["pondering"]["halting"]["bias"] -= 1.0
    return variables


@pytest.fixture(scope="module")
def apply(variables):
    return jax.jit(lambda batch: MODEL.apply(variables, batch, train=False))


@pytest.fixture(scope="module")
def halted(apply, batch):
    return apply(batch)


def unrolled(variables, batch, steps):
    """Outputs of a stack of blocks that have copies of the same weights."""
    params = variables["params"]
    x = params["word_embeddings"]["embedding"][batch["input_ids"]] * math.sqrt(D)
    signals = time_and_position_signals(T, L, D)
    block = MODEL.bind(variables).pondering.block.clone(parent=None)
    for step in range(steps):
        own = {"params": jax.tree.map(jnp.copy, params["pondering"]["block"])}
        x = block.apply(own, x + signals[step], masks.from_batch(batch), train=False)
    return x


def test_without_halting_it_equals_a_stack_of_copies(variables, batch):
    params = {**variables["params"]["pondering"]}
    params.pop("halting")
    plain = {"params": variables["params"] | {"pondering": params}}
    encoded = jax.jit(lambda: EVERY_STEP.apply(plain, batch, train=False))()
    stacked = jax.jit(lambda: unrolled(variables, batch, T))()
    np.testing.assert_allclose(encoded.sequence, stacked, atol=1e-5)
    np.testing.assert_array_equal(encoded.ponder, np.full((B, L), T))


def test_halting_equals_the_paper(variables, halted):
    """Token by token, according to appendix C."""
    dense = variables["params"]["pondering"]["halting"]
    signals = time_and_position_signals(T, L, D)
    states = [np.asarray(state) for state in halted.hidden_states]
    steps_taken = set()
    for row, place in np.ndindex(B, L):
        total = output = steps = remainder = 0.0
        for step in range(T):
            given = states[step][row, place] + signals[step, place]
            logit = given @ np.asarray(dense["kernel"])[:, 0] + np.asarray(dense["bias"])[0]
            probability = 1 / (1 + np.exp(-logit))
            steps += 1
            halts = total + probability > 0.99
            share = 1 - total if halts else probability
            output = share * states[step + 1][row, place] + (1 - share) * output
            if halts:
                remainder = 1 - total
                for later in states[step + 2 :]:
                    np.testing.assert_array_equal(later[row, place], states[step + 1][row, place])
                break
            total += probability
        steps_taken.add(steps)
        np.testing.assert_allclose(halted.sequence[row, place], output, atol=1e-5)
        np.testing.assert_allclose(halted.ponder[row, place], steps + remainder, atol=1e-5)
    assert len(steps_taken) > 1


def test_padding_and_its_halting_have_no_effect(apply, batch, halted):
    for token in (1, 17):
        attention_mask = batch["attention_mask"]
        other = batch | {"input_ids": jnp.where(attention_mask, batch["input_ids"], token)}
        encoded = apply(other)
        attention_mask = np.asarray(attention_mask)
        got, expected = (np.asarray(e.sequence)[attention_mask] for e in (encoded, halted))
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(
            np.asarray(encoded.ponder)[attention_mask], np.asarray(halted.ponder)[attention_mask]
        )


def test_longer_rows_have_no_effect(apply, batch, halted):
    longer = {name: jnp.pad(rows, ((0, 0), (0, 3))) for name, rows in batch.items()}
    encoded = apply(longer)
    attention_mask = np.asarray(batch["attention_mask"])
    got = np.asarray(encoded.sequence)[:, :L][attention_mask]
    np.testing.assert_allclose(got, np.asarray(halted.sequence)[attention_mask], atol=1e-5)


def test_an_impossible_threshold_is_one_line(batch):
    model = MODEL.clone(halting_threshold=1.0)
    with pytest.raises(
        UserError, match=r"halting_threshold: got 1\.0, expected a share in \[0, 1\)"
    ):
        model.init(jax.random.key(0), batch, train=False)
