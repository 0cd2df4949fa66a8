"""Packed examples have the same outputs and gradients as with one row per example."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import build, catalog
from bertjax.errors import UserError
from bertjax.layers.dropout import per_example_key
from bertjax.layers.packed_rows import PACKED_TOKENS, PackedEncoding
from bertjax.tasks.batches import PairBatches
from bertjax.tasks.sequences import Pairs

FIELDS = {
    **{"vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3},
    **{"intermediate_size": 20, "precision": "float32", "initializer_range": 0.5},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attn_pdrop": 0.0},
    **{"embd_pdrop": 0.0, "output_hidden_states": True, "position_initializer": "normal"},
}
MODELS = {
    "bert": {},
    "albert": {"embedding_size": 8},
    "xlnet": {},
    "gpt2": {},
    "deberta": {"position_biased_input": True, "position_buckets": 4},
    "modernbert": {"num_hidden_layers": 3, "local_attention": 6},
    "gpt_bert": {},
}
QUICK = ("bert", "gpt2")


def make(name, **changes):
    known = build.model_fields({"name": name})
    fields = {field: value for field, value in FIELDS.items() if field in known}
    return catalog.load("models", name).Model(**fields | MODELS[name] | changes)


def batches(cls_last=False, **changes):
    """Sequences of 3 to 22 tokens, of which most are short."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.geometric(0.2, 60) + 2, 3, 22)
    pairs = Pairs(
        tokens=random.integers(5, 40, lengths.sum()).astype(np.int32),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        first_lengths=lengths // 2 + 1,
        pad_id=0,
        cls_last=cls_last,
    )
    fields = {"batch_size": 16, "padded_lengths": (8, 24, 32), "packed_examples": 8}
    return PairBatches(pairs, np.arange(60, dtype=np.int32) % 3, **fields | changes)


def all_steps(split):
    steps = itertools.islice(split.training_batches(), split.batches_per_epoch)
    return [batch for _, batch in steps]


@pytest.mark.parametrize("packed_examples", [8, 16])
def test_slots_hold_every_token_once_and_no_row_is_too_long(packed_examples):
    split = batches(packed_examples=packed_examples)
    plain = all_steps(dataclasses.replace(split, packed_examples=0))
    widths = set()
    for batch, expected in zip(all_steps(split), plain, strict=True):
        assert batch["input_ids"].shape == (16, 24)  # the longest sequence has 22 tokens
        np.testing.assert_array_equal(batch["example_id"], expected["example_id"])
        slots = batch[PACKED_TOKENS].reshape(16 // packed_examples, -1)
        for group, mask in zip(slots, np.split(batch["attention_mask"], len(slots)), strict=True):
            assert sorted(group[group >= 0]) == np.flatnonzero(mask).tolist()
            for row in group.reshape(-1, 24):
                used = row[row >= 0]
                # Sequences one after the other, each from its first token on.
                starts = np.flatnonzero(np.diff(used, prepend=-2) != 1)
                assert (used[starts] % 24 == 0).all()
                assert (np.flatnonzero(row >= 0) == np.arange(len(used))).all()
        widths.add(batch[PACKED_TOKENS].shape[1])
    assert max(widths) < 24
    assert all(width % 3 == 0 for width in widths)  # of a row for one of 8 examples


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS],
)
def test_outputs_and_gradients_are_those_of_whole_rows(name):
    encoder = make(name)
    batch = all_steps(batches(cls_last=getattr(encoder, "cls_last", False)))[0]
    rows = {key: jnp.asarray(values) for key, values in batch.items()}
    variables = encoder.init(jax.random.key(0), rows, train=False)
    weights = jax.random.normal(jax.random.key(1), (*batch["input_ids"].shape, 12))
    mask = jnp.asarray(batch["attention_mask"])[..., None]

    def outputs(encoded):
        found = {"sequence": jnp.where(mask, encoded.sequence, 0)}
        if encoded.pooled is not None:
            found["pooled"] = encoded.pooled
        if encoded.cls_state is not None:
            found["cls_state"] = encoded.cls_state
        for layer, states in enumerate(encoded.hidden_states or ()):
            found[f"layer {layer}"] = jnp.where(mask, states, 0)
        return found

    def loss(variables, rows):
        def encode(encoder):
            return PackedEncoding(8)(encoder, rows, train=False)

        found = outputs(encoder.apply(variables, method=encode))
        pooled = sum(found[name].sum() for name in ("pooled", "cls_state") if name in found)
        return (found["sequence"] * weights).sum() + pooled, found

    apply = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, together), packed_gradient = apply(variables, rows)
    (_, alone), gradient = apply(variables, {k: rows[k] for k in rows if k != PACKED_TOKENS})
    assert together.keys() == alone.keys()
    for output, expected in alone.items():
        np.testing.assert_allclose(together[output], expected, atol=1e-4, err_msg=output)
    jax.tree.map(
        lambda found, expected: np.testing.assert_allclose(
            found, expected, atol=1e-4 * max(1, np.abs(expected).max())
        ),
        packed_gradient,
        gradient,
    )


def test_dropout_does_not_depend_on_the_microbatch():
    """Invariant 4: rows have the keys of examples of their own group."""
    encoder = make("bert", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    batch = all_steps(batches())[0]
    rows = {key: jnp.asarray(values) for key, values in batch.items()}
    assert rows[PACKED_TOKENS].shape[1] < 24
    variables = encoder.init(jax.random.key(0), rows, train=False)
    keys = jax.random.split(jax.random.key(2), 16)

    def sequence(part):
        def encode(encoder):
            return PackedEncoding(8)(encoder, {k: rows[k][part] for k in rows}, train=True)

        rngs = {"dropout": per_example_key(jax.random.key(3), keys[part])}
        return encoder.apply(variables, rngs=rngs, method=encode).sequence

    whole, *parts = (sequence(part) for part in (slice(16), slice(8), slice(8, 16)))
    np.testing.assert_allclose(jnp.concatenate(parts), whole, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"packed_examples": 12},
            r"=12: expected 0, or a multiple of 8 that divides batch_size=16",
        ),
        ({"batch_size": 20}, r"=8: expected 0, or a multiple of 8 that divides batch_size=20"),
        ({"padded_lengths": (30,)}, r"rows of a multiple of 8 tokens: got 30; change max_seq_len"),
    ],
)
def test_groups_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        batches(**changes)
