"""UniLM: shares of the four attention masks, and visibility in each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers import masks
from bertjax.models.bert import Model
from bertjax.objectives.unified_lm import KINDS, Objective
from bertjax.pretrainer import Pretrainer

SPECIAL, VOCABULARY = (0, 1, 2, 3, 4), 61


@pytest.fixture(scope="module")
def encoder(encoder):
    """An encoder with six segment types."""
    return encoder.clone(type_vocab_size=6)


def with_segments(batch, first=15):
    attention_mask = batch["attention_mask"]
    return {
        **batch,
        "segment_ids": ((jnp.arange(attention_mask.shape[1]) >= first) & attention_mask) * 1,
    }


def test_masks_have_their_shares_and_change_with_the_step(encoder, make_batch):
    objective = Objective(4, SPECIAL, VOCABULARY)
    prepare = jax.jit(
        lambda batch: objective.apply({}, encoder, batch, train=True, method="prepare")
    )
    batch = with_segments(make_batch(1200, 24), 9)
    prepared = prepare(batch)
    kinds = np.asarray(prepared["lm_kind"])
    shares = np.bincount(kinds, minlength=4) / len(kinds)
    np.testing.assert_allclose(shares, [1 / 3, 1 / 6, 1 / 6, 1 / 3], atol=0.05)
    later = prepare(with_segments(make_batch(1200, 24, step=1), 9))
    assert (np.asarray(later["lm_kind"]) != kinds).mean() > 0.5
    numbers = {kind: set(np.unique(prepared["segment_ids"][kinds == kind])) for kind in range(4)}
    assert numbers == {0: {0, 1}, 1: {2}, 2: {3}, 3: {4, 5}}
    text = np.asarray(batch["attention_mask"].sum(1)) - 2
    np.testing.assert_array_equal(prepared["mlm_weights"].sum(1), np.round(0.15 * text).clip(1))
    expected = masks.unified(prepared["lm_kind"], batch["attention_mask"], batch["segment_ids"])
    np.testing.assert_array_equal(prepared["attention_mask"], expected)


def test_masked_tokens_have_no_gradient(random_variables):
    length, first = 7, 3
    model = Model(VOCABULARY, 6, 2, 2, 5, type_vocab_size=6, num_pooler_layers=0)
    attention_mask = jnp.arange(length) < jnp.array([7, 7, 7, 6])[:, None]
    segments = jnp.broadcast_to(jnp.arange(length) >= first, attention_mask.shape) * 1
    visible_matrix = masks.unified(jnp.arange(4), attention_mask, segments)
    batch = {"input_ids": jnp.ones((4, length), int), "attention_mask": visible_matrix}
    batch["segment_ids"] = segments
    variables = random_variables(model, batch, train=False)
    random = np.random.default_rng(0)
    embedded, probe = (jnp.asarray(random.normal(size=(4, length, 6)), jnp.float32) for _ in "ab")

    def projected(embedded):
        encoded = model.apply(variables, embedded, batch, train=False, method="encode")
        return jnp.einsum("bld,ld->bl", encoded.sequence, probe[0])

    slopes = np.abs(jax.jit(jax.jacrev(projected))(embedded)).max(-1)
    at = np.arange(length)
    own = {
        "bidirectional": np.ones((length, length), bool),
        "left_to_right": at[None] <= at[:, None],
        "right_to_left": at[None] >= at[:, None],
        "seq2seq": (at[None] < first) | (at[None] <= at[:, None]),
    }
    for number, kind in enumerate(KINDS):
        visible = own[kind] & np.asarray(attention_mask[number])[None]
        slope = slopes[number, :, number]
        hidden = ~visible & ~np.eye(length, dtype=bool)
        assert np.all(slope[hidden] == 0), kind
        assert np.all(slope[visible & np.asarray(attention_mask[number])[:, None]] > 0), kind


def test_every_kind_of_mask_has_its_loss(random_variables, make_batch):
    model = Model(VOCABULARY, 6, 1, 2, 5, max_position_embeddings=64, type_vocab_size=6)
    module = Pretrainer(model, {"unified_lm": lambda: Objective(4, SPECIAL, VOCABULARY)})
    batch = with_segments(make_batch())
    variables = random_variables(module, batch, train=False)
    losses, metrics = jax.jit(functools.partial(module.apply, train=False))(variables, batch)
    parts = [metrics[f"unified_lm/{kind}_loss"] for kind in KINDS]
    whole = losses["unified_lm"]
    for number in range(2):
        total = sum(float(part[number]) for part in parts)
        assert total == pytest.approx(float(whole[number]), rel=1e-5)


def test_a_model_with_too_few_segment_types_is_refused(encoder, make_batch):
    few, batch = encoder.clone(type_vocab_size=2), with_segments(make_batch())
    with pytest.raises(UserError, match="got a model with 2 segment ids, expected 6"):
        Objective(4, SPECIAL, VOCABULARY).apply({}, few, batch, train=True, method="prepare")


def test_shares_are_one_for_each_kind(encoder, make_batch):
    wrong = Objective(4, SPECIAL, VOCABULARY, shares=(1.0, 1.0))
    with pytest.raises(UserError, match="expected a share for each of bidirectional"):
        wrong.apply({}, encoder, make_batch(), train=True, method="prepare")
