"""GPT: causality, packing, padding, and decoding with a KV cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models import gpt1, gpt2

B, L, V, D = 2, 7, 31, 12
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
SIZES |= {"vocab_size": V, "hidden_size": D, "max_position_embeddings": 9}
PACK_IDS = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 2, 2, 0, 0]])


@pytest.fixture(scope="module", params=[gpt1, gpt2], ids=["gpt1", "gpt2"])
def model(request):
    return request.param.Model(**SIZES)


@pytest.fixture(scope="module")
def batch():
    ids = np.random.default_rng(0).integers(0, V, (B, L))
    return {"input_ids": jnp.asarray(ids), "attention_mask": jnp.ones((B, L), bool)}


@pytest.fixture(scope="module")
def variables(model, random_variables, batch):
    return random_variables(model, batch)


@pytest.fixture(scope="module")
def encode(model):
    return jax.jit(lambda variables, batch: model.apply(variables, batch, train=False).sequence)


def reaches(model, variables, batch):
    """[B L L]: whether any output at l has a gradient by the word at m."""
    words = variables["params"]["word_embeddings"]["embedding"][batch["input_ids"]]
    ids = jnp.arange(B * L).reshape(B, L)
    wide = type(model)(**SIZES | {"vocab_size": B * L})

    def sequence(words):
        table = {"word_embeddings": {"embedding": words.reshape(-1, D)}}
        params = variables["params"] | table
        return wide.apply({"params": params}, batch | {"input_ids": ids}, train=False).sequence

    jacobian = np.abs(np.asarray(jax.jit(jax.jacrev(sequence))(words))).max(axis=(2, 5))
    assert not jacobian[0, :, 1].any()
    assert not jacobian[1, :, 0].any()
    return np.stack([jacobian[row, :, row] for row in range(B)]) > 0


def test_outputs_do_not_depend_on_later_tokens(model, variables, batch):
    found = reaches(model, variables, batch)
    np.testing.assert_array_equal(found, np.broadcast_to(np.tri(L, dtype=bool), (B, L, L)))


def test_packed_documents_are_separated(model, variables, batch, encode):
    packed = batch | {
        "pack_ids": jnp.asarray(PACK_IDS),
        "attention_mask": jnp.asarray(PACK_IDS > 0),
    }
    starts = np.array([[0, 0, 0, 3, 3, 3, 3], [0, 0, 2, 2, 2, 5, 5]])
    packed["position_ids"] = jnp.asarray(np.arange(L) - starts)
    found = reaches(model, variables, packed)
    expected = (
        (PACK_IDS[:, :, None] == PACK_IDS[:, None, :])
        & np.tri(L, dtype=bool)
        & (PACK_IDS > 0)[:, None]
    )
    attention_mask = PACK_IDS > 0
    np.testing.assert_array_equal(found[attention_mask], expected[attention_mask])
    alone = {"input_ids": batch["input_ids"][:1, 3:], "attention_mask": jnp.ones((1, 4), bool)}
    whole = encode(variables, packed)
    np.testing.assert_allclose(whole[:1, 3:], encode(variables, alone), atol=1e-5)


def test_padding_has_no_effect(variables, batch, encode):
    short = {name: rows[:, :5] for name, rows in batch.items()}
    padded = batch | {"attention_mask": jnp.asarray(np.arange(L) < np.full((B, 1), 5))}
    found = encode(variables, padded)[:, :5]
    np.testing.assert_allclose(found, encode(variables, short), atol=1e-5)


def test_a_cache_has_no_effect_at_any_position(model, variables, batch, encode):
    """Row 1 starts two columns later; then tokens are added one by one, and two at once."""
    ids = np.asarray(batch["input_ids"])
    columns = np.stack([ids[0], np.concatenate([[9, 9], ids[1, :5]])])
    attention_mask = np.arange(L) >= np.array([[0], [2]])
    expected = np.asarray(encode(variables, batch))

    def piece(begin, end):
        return {
            "input_ids": jnp.asarray(columns[:, begin:end]),
            "attention_mask": jnp.asarray(attention_mask[:, begin:end]),
        }

    def call(method, *arguments):
        return model.apply(variables, *arguments, method=method, mutable=["cache"])[0]

    extend = jax.jit(lambda rows, cache: call("decode", rows, cache))
    sequence, cache = call("prefill", piece(0, 3), L - 3)
    found = [sequence]
    for begin, end in ((3, 4), (4, 5), (5, 7)):
        sequence, cache = extend(piece(begin, end), cache)
        found.append(sequence)
    found = np.concatenate(found, axis=1)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(found[1, 2:], expected[1, :5], atol=1e-5)
    assert int(cache.end) == L


def test_a_text_that_is_too_long_is_refused(model):
    ids = jnp.zeros((1, 10), jnp.int32)
    batch = {"input_ids": ids, "attention_mask": jnp.ones((1, 10), bool)}
    with pytest.raises(UserError, match="10 tokens exceeds max_position_embeddings=9"):
        model.init(jax.random.key(0), batch, train=False)
    with pytest.raises(
        UserError, match="num_attention_heads=5, expected hidden_size to divide into"
    ):
        type(model)(**SIZES | {"num_attention_heads": 5}).init(
            jax.random.key(0), batch, train=False
        )


def test_the_pooled_output_is_that_of_the_last_token(model, variables, batch):
    lengths = np.array([4, L])
    attention_mask = jnp.asarray(np.arange(L) < lengths[:, None])
    run = jax.jit(lambda batch: model.apply(variables, batch, train=False))
    encoded = run(batch | {"attention_mask": attention_mask})
    last = np.asarray(encoded.sequence)[np.arange(B), lengths - 1]
    np.testing.assert_array_equal(encoded.cls_state, last)


@pytest.mark.parametrize(("own", "others", "dropped"), [(0.5, 0.0, True), (0.0, 0.5, False)])
def test_embeddings_have_their_own_dropout_rate(model, variables, batch, own, others, dropped):
    rates = {"embd_pdrop": own, "hidden_dropout_prob": others, "attention_probs_dropout_prob": 0.0}
    module = type(model)(**SIZES, **rates, output_hidden_states=True)

    def embedded(key):
        encoded = module.apply(variables, batch, train=True, rngs={"dropout": key})
        return encoded.hidden_states[0]

    zeros = np.mean(np.asarray(jax.jit(embedded)(jax.random.key(3))) == 0)
    assert (0.3 < zeros < 0.7) if dropped else zeros == 0
