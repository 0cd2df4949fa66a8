"""DeBERTa: padding, packed rows, the mask decoder, shared word embeddings."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.deberta import Model
from bertjax.train.checkpoint.trees import flatten_names

B, L, P, V, D = 2, 9, 3, 31, 12
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 14,
    "position_buckets": 6,
}
MODEL = Model(**SIZES, mask_decoder_layers=2)
POSITIONS = jnp.asarray([[5, 1, 7], [0, 2, 4]])


@pytest.fixture(scope="module")
def batch():
    return {
        "input_ids": jnp.asarray(np.random.default_rng(0).integers(0, V, (B, L))),
        "attention_mask": jnp.asarray(np.arange(L) < np.array([[L], [6]])),
    }


@pytest.fixture(scope="module")
def variables(random_variables, batch):
    return random_variables(MODEL, batch)


@jax.jit
def encode(variables, batch):
    return MODEL.apply(variables, batch, train=False)


def test_padding_has_no_effect(variables, batch):
    """Invariant 7."""
    longer = {name: jnp.pad(rows, ((0, 0), (0, 3))) for name, rows in batch.items()}
    longer["input_ids"] = longer["input_ids"].at[:, L:].set(7)
    short, long = encode(variables, batch), encode(variables, longer)
    attention_mask = np.asarray(batch["attention_mask"])
    for name in ("sequence", "queries"):
        found, expected = (np.asarray(getattr(each, name)) for each in (long, short))
        np.testing.assert_allclose(
            found[:, :L][attention_mask], expected[attention_mask], atol=1e-5, err_msg=name
        )


@pytest.mark.slow
def test_packed_texts_are_encoded_as_if_alone(variables, batch):
    """Invariant 7; absolute positions are those within the text."""
    ids, lengths = batch["input_ids"][:1], (4, 5)
    packed = {
        "input_ids": ids,
        "attention_mask": jnp.ones((1, L), bool),
        "pack_ids": jnp.repeat(jnp.asarray([1, 2]), jnp.asarray(lengths))[None],
        "position_ids": jnp.concatenate([jnp.arange(length) for length in lengths])[None],
    }
    together, start = encode(variables, packed), 0
    for length in lengths:
        row = {"input_ids": ids[:, start : start + length]}
        row["attention_mask"] = jnp.ones((1, length), bool)
        alone = encode(variables, row)
        for name in ("sequence", "queries"):
            found = getattr(together, name)[:, start : start + length]
            np.testing.assert_allclose(found, getattr(alone, name), atol=1e-5, err_msg=name)
        start += length


def test_relative_positions_alone_do_not_distinguish_a_shifted_text(variables, batch):
    """Absolute positions enter in the mask decoder, not in the encoder (section 3.2)."""
    row = {name: rows[:1] for name, rows in batch.items()}
    shifted = row | {"position_ids": 3 + jnp.arange(L)[None]}
    one, other = encode(variables, row), encode(variables, shifted)
    np.testing.assert_array_equal(one.sequence, other.sequence)
    assert np.abs(one.queries - other.queries).max() > 0.01


def test_the_decoder_computes_predicted_positions_alone(variables, batch):
    everywhere = encode(variables, batch).queries
    found = encode(variables, batch | {"mlm_positions": POSITIONS}).queries
    assert found.shape == (B, P, D)
    expected = jnp.take_along_axis(everywhere, POSITIONS[..., None], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_decoder_applies_the_last_layer_with_positions_as_queries(variables, batch):
    """Without position embeddings its first layer is the last one of the encoder."""
    model = Model(**SIZES, mask_decoder_layers=1)
    zeros = jax.tree.map(jnp.zeros_like, variables["params"]["position_embeddings"])
    params = variables["params"] | {"position_embeddings": zeros}
    encoded = model.apply({"params": params}, batch, train=False)
    np.testing.assert_allclose(encoded.queries, encoded.sequence, atol=1e-5)
    with_positions = model.apply(variables, batch, train=False)
    assert np.abs(with_positions.queries - encoded.queries).max() > 0.01


def test_a_layer_of_the_decoder_has_dropout_masks_of_its_own(variables, batch):
    """Whatever the first layer drops, the second drops something else."""
    model = Model(**SIZES, mask_decoder_layers=2, attention_probs_dropout_prob=0.0)
    keys = [jax.random.key(number) for number in (0, 0, 1)]
    one, same, other = (
        model.apply(variables, batch, train=True, rngs={"dropout": key}).queries for key in keys
    )
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.01


def test_the_encoder_of_shared_embeddings_is_that_of_their_sum(random_variables, batch):
    """V3, section 3.3; gradients of the encoder reach the difference alone."""
    shared, alone = Model(**SIZES, embedding_sharing="gdes"), Model(**SIZES)
    params = dict(random_variables(shared, batch)["params"])
    tables = {n: each["embedding"] for n, each in params["shared_embeddings"].items()}
    merged = {n: value for n, value in params.items() if n != "shared_embeddings"}
    merged["word_embeddings"] = {"embedding": tables["generator"] + tables["delta"]}

    def total(params):
        sequence = shared.apply({"params": params}, batch, train=False).sequence
        probe = np.random.default_rng(2).normal(size=sequence.shape)
        return jnp.sum(sequence * probe), sequence

    (_, sequence), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    expected = alone.apply({"params": merged}, batch, train=False).sequence
    np.testing.assert_allclose(sequence, expected, atol=1e-5)
    assert not np.asarray(gradient["shared_embeddings"]["generator"]["embedding"]).any()
    assert np.asarray(gradient["shared_embeddings"]["delta"]["embedding"]).any()


def test_the_difference_is_initially_zero(batch):
    model = Model(**SIZES, embedding_sharing="gdes")
    params = nn.meta.unbox(model.init(jax.random.key(0), batch, train=False))["params"]
    assert not np.asarray(params["shared_embeddings"]["delta"]["embedding"]).any()
    vectors = [
        model.apply({"params": params}, batch, method=method)
        for method in (lambda m, b: m.embed(b, train=False), lambda m, b: m._words(b["input_ids"]))
    ]
    np.testing.assert_array_equal(*vectors)


def test_arrays_follow_the_fields(batch):
    """Only the used tables and layers have parameters."""

    def names(**fields):
        made = jax.eval_shape(
            lambda: Model(**SIZES, **fields).init(jax.random.key(0), batch, train=False)
        )
        return {name.rpartition("/")[0] for name in flatten_names(nn.meta.unbox(made)["params"])}

    usual = names()
    assert "position_embeddings" not in usual
    assert names(position_biased_input=True) - usual == {"position_embeddings"}
    assert names(mask_decoder_layers=2) - usual == {"position_embeddings"}
    assert names(type_vocab_size=2) - usual == {"segment_embeddings"}
    assert names(embedding_size=7) - usual == {"embeddings_project"}
    assert usual - names(norm_rel_ebd="none") == {"relative_norm"}
    attention = "layers/block/attention"
    own = {f"{attention}/position_query", f"{attention}/position_key"}
    assert names(share_att_key=False) - usual == own
    assert names(share_att_key=False, pos_att_type=("c2p",)) - usual == own - {
        f"{attention}/position_query"
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 10}, "got hidden_size=10, num_attention_heads=3"),
        ({"pos_att_type": ("c2c",)}, r"pos_att_type: got \('c2c',\), expected one of 'c2p', 'p2c'"),
        ({"pos_att_type": ()}, r"pos_att_type: got \(\), expected at least one element"),
        ({"pos_att_type": ("c2p", "c2p")}, "expected each term once"),
        ({"position_buckets": 26}, "position_buckets=26, .*=14, expected position_buckets from 2"),
        (
            {"mask_decoder_layers": 1, "embedding_size": 7},
            "expected embedding_size=0 or hidden_size with a mask decoder",
        ),
    ],
)
def test_impossible_fields_are_one_line(fields, message, batch):
    model = dataclasses.replace(Model(**SIZES), **fields)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: model.init(jax.random.key(0), batch, train=False))


@pytest.mark.slow
def test_only_absolute_positions_limit_the_length(batch):
    longer = {name: jnp.tile(rows, 2) for name, rows in batch.items()}
    assert Model(**SIZES).init_with_output(jax.random.key(0), longer, train=False)
    with pytest.raises(UserError, match="a sequence of 18 tokens exceeds max_position_embeddings"):
        jax.eval_shape(lambda: MODEL.init(jax.random.key(0), longer, train=False))
