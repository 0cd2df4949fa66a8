"""XLNet: visibility by the sampled order, padding, and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.xlnet import Model

B, L, P, V, D = 2, 9, 4, 31, 12
MODEL = Model(V, D, 2, 3, 20, mem_len=5)


@pytest.fixture(scope="module")
def batch():
    order = np.full((B, L), -1)
    order[0, [5, 1, 7, 3]] = [4, 2, 8, 0]
    order[1, [0, 2, 4, 5]] = [3, 1, 0, 7]
    order[0, 8] = 5
    return {
        "input_ids": jnp.asarray(np.random.default_rng(0).integers(0, V, (B, L))),
        "attention_mask": jnp.asarray(np.arange(L) < np.array([[L], [6]])),
        "segment_ids": jnp.asarray(np.arange(L) > np.array([[4], [2]]), jnp.int32),
        "prediction_order": jnp.asarray(order),
        "mlm_positions": jnp.asarray([[5, 1, 7, 3], [0, 2, 4, 5]]),
    }


@pytest.fixture(scope="module")
def variables(random_variables, batch):
    return {"params": random_variables(MODEL, batch)["params"]}


@pytest.fixture(scope="module")
def jacobians(variables, batch):
    """Derivatives of both streams by the word vectors: each [B Q B L], summed over features."""
    words = variables["params"]["word_embeddings"]["embedding"][batch["input_ids"]]
    table = jnp.concatenate([jnp.zeros((V, D)), words.reshape(-1, D)])
    ids = V + jnp.arange(B * L).reshape(B, L)
    model = Model(V + B * L, D, 2, 3, 20)

    def streams(words):
        rows = table.at[V:].set(words.reshape(-1, D))
        params = variables["params"] | {"word_embeddings": {"embedding": rows}}
        encoded = model.apply({"params": params}, batch | {"input_ids": ids}, train=False)
        return encoded.sequence, encoded.queries

    def reaches(stream):
        jacobian = jax.jit(jax.jacrev(lambda words: streams(words)[stream]))(words)
        return np.abs(np.asarray(jacobian)).max(axis=(2, 5))

    return [reaches(stream) for stream in (0, 1)]


def expected(batch):
    """Expected dependencies through any number of layers: the order is transitive."""
    order, attention_mask = (
        np.asarray(batch["prediction_order"]),
        np.asarray(batch["attention_mask"]),
    )
    earlier = (order[:, None, :] < 0) | (order[:, None, :] < order[:, :, None])
    return earlier & attention_mask[:, None, :]


def test_a_query_does_not_depend_on_its_own_token_and_later_ones(jacobians, batch):
    allowed, positions = expected(batch), np.asarray(batch["mlm_positions"])
    for row, query in np.ndindex(B, P):
        reach = jacobians[1][row, query]
        position = positions[row, query]
        assert reach[row, position] == 0, (row, query, position, reach)
        np.testing.assert_array_equal(reach[row] > 0, allowed[row, position])
        assert not reach[1 - row].any()


def test_the_content_stream_depends_on_itself_and_earlier_tokens(jacobians, batch):
    allowed = expected(batch) | np.eye(L, dtype=bool)
    for row, query in zip(*np.nonzero(np.asarray(batch["attention_mask"])), strict=True):
        reach = jacobians[0][row, query]
        np.testing.assert_array_equal(reach[row] > 0, allowed[row, query])


def test_the_first_prediction_without_context_depends_on_no_token(variables, batch):
    """No token is visible, not even the predicted one."""
    alone = batch | {"prediction_order": jnp.tile(jnp.arange(L), (B, 1))}
    alone["mlm_positions"] = jnp.zeros((B, P), jnp.int32)
    other = alone | {"input_ids": (alone["input_ids"] + 7) % V}
    first, second = (
        MODEL.apply(variables, rows, train=False).queries[0] for rows in (alone, other)
    )
    np.testing.assert_array_equal(first, second)


def test_padding_has_no_effect(variables, batch):
    plain = {name: batch[name] for name in ("input_ids", "attention_mask", "segment_ids")}
    longer = {name: jnp.pad(rows, ((0, 0), (0, 3))) for name, rows in plain.items()}
    longer["input_ids"] = longer["input_ids"].at[:, L:].set(7)
    short, long = (MODEL.apply(variables, rows, train=False) for rows in (plain, longer))
    attention_mask = np.asarray(plain["attention_mask"])
    np.testing.assert_allclose(
        np.asarray(long.sequence)[:, :L][attention_mask],
        np.asarray(short.sequence)[attention_mask],
        atol=1e-5,
    )
    np.testing.assert_allclose(long.cls_state, short.cls_state, atol=1e-5)
    np.testing.assert_array_equal(short.cls_state[1], short.sequence[1, 5])


def test_two_segments_with_memory_equal_one_pass(variables):
    """If the second segment attends to the visible tokens of the first."""
    generator = np.random.default_rng(2)
    ids = jnp.asarray(generator.integers(0, V, (B, 9)))
    first_sees_itself = np.zeros((9, 9), bool)
    first_sees_itself[:5, :5] = True
    first_sees_itself[5:] = True
    whole = {
        "input_ids": ids,
        "attention_mask": jnp.asarray(np.broadcast_to(first_sees_itself, (B, 9, 9))),
    }
    joined = MODEL.apply(variables, whole, train=False).sequence
    zeros = {"states": jnp.zeros((B, 2, 5, D)), "filled": jnp.zeros((B, 5), bool)}
    carry, parts = {"memory": zeros}, []
    for part, going_on in ((ids[:, :5], False), (ids[:, 5:], True)):
        attention_mask = jnp.ones(part.shape, bool)
        rows = {
            "input_ids": part,
            "attention_mask": attention_mask,
            "memory_mask": attention_mask,
            "is_continuation": jnp.full(B, going_on),
        }
        encoded, changed = MODEL.apply(
            variables | {"carry": carry}, rows, train=False, mutable=["carry"]
        )
        carry, parts = changed["carry"], [*parts, encoded.sequence]
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), joined, atol=2e-5)


def test_impossible_sizes_are_one_line(batch):
    with pytest.raises(UserError, match="got hidden_size=10, num_attention_heads"):
        Model(V, 10, 2, 3, 20).init(jax.random.key(0), batch, train=False)
    with pytest.raises(UserError, match="mem_len: got -1, expected an integer >= 0"):
        Model(V, D, 2, 3, 20, mem_len=-1).init(jax.random.key(0), batch, train=False)
