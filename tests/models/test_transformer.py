"""The encoder-decoder: padding, causality, and decoding token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.transformer import Model

B, L, T, V, D, N, H, F = 3, 11, 7, 97, 24, 2, 4, 40


@pytest.fixture(scope="module")
def model():
    return Model(V, D, N, H, F)


@pytest.fixture(scope="module")
def batch():
    """Sources of full length, of length 1, and of a length in between."""
    generator = np.random.default_rng(0)
    return {
        "input_ids": jnp.asarray(generator.integers(0, V, (B, L))),
        "attention_mask": jnp.arange(L) < jnp.array([[L], [1], [8]]),
        "decoder_input_ids": jnp.asarray(generator.integers(0, V, (B, T))),
    }


@pytest.fixture(scope="module")
def variables(model, batch, random_variables):
    return random_variables(model, batch)


@pytest.fixture(scope="module")
def encode(model, variables):
    return jax.jit(lambda batch: model.apply(variables, batch, train=False))


def test_padding_and_later_tokens_have_no_effect(encode, batch):
    encoded = encode(batch)
    noise = jnp.where(batch["attention_mask"], batch["input_ids"], 5)
    other = encode({**batch, "input_ids": noise})
    np.testing.assert_array_equal(other.decoded, encoded.decoded)
    attention_mask = np.asarray(batch["attention_mask"])
    np.testing.assert_array_equal(other.sequence[attention_mask], encoded.sequence[attention_mask])
    changed = batch["decoder_input_ids"].at[:, 4].add(1) % V
    later = encode({**batch, "decoder_input_ids": changed}).decoded
    np.testing.assert_array_equal(later[:, :4], encoded.decoded[:, :4])
    assert np.all(np.abs(later[:, 4:] - encoded.decoded[:, 4:]).max(-1) > 0)


def test_decoding_token_by_token_equals_one_pass(model, variables, encode, batch):
    decoded = encode(batch).decoded
    expected = model.apply(variables, decoded, method="attend")
    output = model.apply(variables, batch, T, method="begin")
    step = jax.jit(lambda output, tokens: model.apply(variables, output, tokens, method="step"))
    for place, tokens in enumerate(batch["decoder_input_ids"].T):
        scores, output = step(output, tokens)
        np.testing.assert_allclose(scores, expected[:, place], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(output.length, [T] * B)


def test_positions_can_be_given_for_targets_that_start_later(encode, batch):
    encoded = encode({**batch, "decoder_positions": jnp.broadcast_to(jnp.arange(T), (B, T))})
    np.testing.assert_array_equal(encoded.decoded, encode(batch).decoded)
    moved = encode({**batch, "decoder_positions": jnp.broadcast_to(jnp.arange(T) + 3, (B, T))})
    assert np.all(np.abs(moved.decoded - encoded.decoded).max(-1) > 1e-3)


def test_a_batch_without_targets_is_used_as_target(encode, batch):
    encoded = encode({name: batch[name] for name in ("input_ids", "attention_mask")})
    whole = encode({**batch, "decoder_input_ids": batch["input_ids"]}).decoded
    expected = [whole[0, L - 1], whole[1, 0], whole[2, 7]]
    np.testing.assert_allclose(encoded.cls_state, np.stack(expected), atol=1e-6)


def test_heads_must_divide_the_width(batch):
    with pytest.raises(UserError, match="got hidden_size=24, num_attention_heads=5"):
        Model(V, D, N, 5, F).init(jax.random.key(0), batch, train=False)
