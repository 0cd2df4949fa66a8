"""ELMo: separate directions, padding, and states carried between batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.elmo import Model

B, L, W, D, N, F = 2, 6, 5, 8, 2, 7
MODEL = Model(31, D, N, F, ((1, 3), (2, 4)), 3, 1, W, output_hidden_states=True)


@pytest.fixture(scope="module")
def batch():
    attention_mask = np.arange(L) < np.array([[L], [4]])
    return {
        "char_ids": jnp.asarray(np.random.default_rng(0).integers(0, 261, (B, L, W))),
        "attention_mask": jnp.asarray(attention_mask),
    }


@pytest.fixture(scope="module")
def variables(random_variables, batch):
    return {"params": random_variables(MODEL, batch)["params"]}


@pytest.fixture(scope="module")
def apply(variables):
    return jax.jit(lambda batch: MODEL.apply(variables, batch, train=False))


def test_each_direction_depends_on_its_own_side(apply, batch):
    plain = np.asarray(apply(batch).sequence)
    for place in range(L):
        changed = batch["char_ids"].at[:, place].add(7) % 261
        moved = np.asarray(apply(batch | {"char_ids": changed}).sequence) != plain
        forward, backward = moved[..., : D // 2].any(-1), moved[..., D // 2 :].any(-1)
        attention_mask, at = np.asarray(batch["attention_mask"]), np.arange(L)
        visible = attention_mask & attention_mask[:, [place]]
        np.testing.assert_array_equal(forward, visible & (at >= place))
        np.testing.assert_array_equal(backward, visible & (at <= place))


def test_padding_has_no_effect(apply, batch):
    longer = {
        name: jnp.pad(rows, [(0, 0), (0, 3), (0, 0)][: rows.ndim]) for name, rows in batch.items()
    }
    short, long = apply(batch), apply(longer)
    for got, expected in zip(long.layers, short.layers, strict=True):
        np.testing.assert_allclose(np.asarray(got)[:, :L], expected, atol=1e-6)
        assert not np.asarray(got)[:, L:].any()


def test_states_continue_in_some_rows_and_restart_in_others(apply, variables, batch):
    """The forward direction of two consecutive segments equals that of one text."""
    whole = batch | {"attention_mask": jnp.ones((B, L), bool)}
    joined = np.asarray(apply(whole).sequence)
    lead = (B, N, 2)
    state = {"cell": jnp.ones((*lead, F)), "hidden": jnp.ones((*lead, D // 2))}
    carry, parts = {"state": state}, []

    @jax.jit
    def read(carry, rows):
        given = variables | {"carry": carry}
        encoded, changed = MODEL.apply(given, rows, train=False, mutable=["carry"])
        return encoded.sequence, changed["carry"]

    for begin, going_on in ((0, [False, False]), (3, [True, False])):
        rows = {name: value[:, begin : begin + 3] for name, value in whole.items()}
        rows["is_continuation"] = jnp.asarray(going_on)
        sequence, carry = read(carry, rows)
        parts.append(np.asarray(sequence))
    forward = np.concatenate(parts, axis=1)[..., : D // 2]
    np.testing.assert_allclose(forward[0], joined[0, :, : D // 2], atol=1e-6)
    # A row that does not continue reads as if the first piece were padding.
    first_tokens = {"attention_mask": whole["attention_mask"].at[:, 3:].set(False)}
    moved = whole | {"char_ids": jnp.roll(whole["char_ids"], -3, axis=1)} | first_tokens
    np.testing.assert_allclose(parts[1][1], apply(moved).sequence[1, :3], atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "printed"),
    [
        ({"hidden_size": 7}, "hidden_size=7, expected an even number"),
        ({"max_chars_per_word": 1}, "max_chars_per_word=1, expected no filter wider"),
    ],
)
def test_impossible_fields_are_one_line(fields, printed, batch):
    model = MODEL.clone(**fields)
    with pytest.raises(UserError, match=printed):
        model.init(jax.random.key(0), batch, train=False)


def test_attend_is_not_supported():
    with pytest.raises(UserError, match="pretrain it with objective bidirectional_lm"):
        MODEL.attend(jnp.zeros((1, D)))
