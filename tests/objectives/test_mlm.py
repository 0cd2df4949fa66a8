"""The masked language model: sampled masks (invariant 1) and loss."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.errors import UserError
from bertjax.layers import losses
from bertjax.objectives.mlm import Objective
from bertjax.pretrainer import Encoded
from bertjax.train.accumulation import split_microbatches

PAD, CLS, SEP, MASK = 0, 2, 3, 4
VOCABULARY = 61
NEW = ("input_ids", "mlm_positions", "mlm_labels", "mlm_weights")


def objective(**fields):
    special_ids = (PAD, 1, CLS, SEP, MASK)
    return Objective(mask_id=MASK, special_ids=special_ids, vocab_size=VOCABULARY, **fields)


@pytest.fixture(scope="module")
def prepare(encoder):
    """`prepare(batch, **fields of the objective)`, compiled once for the same fields."""
    compiled = {}

    def run(batch, **fields):
        def plain(batch):
            return objective(**fields).apply({}, encoder, batch, train=True, method="prepare")

        return compiled.setdefault(tuple(fields.items()), jax.jit(plain))(batch)

    return run


def test_labels_are_the_original_tokens_and_other_tokens_stay(prepare, make_batch):
    batch = make_batch()
    prepared = prepare(batch)
    original, hidden = np.asarray(batch["input_ids"]), np.asarray(prepared["input_ids"])
    places = np.zeros(original.shape, bool)
    positions, weights = prepared["mlm_positions"], prepared["mlm_weights"]
    np.testing.assert_array_equal(
        prepared["mlm_labels"], np.take_along_axis(original, np.asarray(positions), 1)
    )
    for row, (position, weight) in enumerate(zip(positions, weights, strict=True)):
        places[row, position[weight > 0]] = True
    np.testing.assert_array_equal(hidden[~places], original[~places])
    assert np.mean(hidden[places] != original[places]) > 0.5
    assert set(prepared) == {*batch, *NEW}


@pytest.mark.parametrize("masking", ["token", "word", "ngram", "span"])
def test_specials_and_padding_are_never_predicted_and_the_number_is_exact(
    masking, prepare, make_batch
):
    lengths = make_batch()["attention_mask"].sum(-1)
    for step in range(20):
        prepared = prepare(make_batch(step=step), masking=masking)
        labels = np.asarray(prepared["mlm_labels"])[np.asarray(prepared["mlm_weights"]) > 0]
        assert labels.min() >= 5
        # Everything but [CLS] and [SEP] may be masked.
        expected = [round(0.15 * (int(length) - 2)) for length in lengths]
        np.testing.assert_array_equal(prepared["mlm_weights"].sum(-1), expected)


def test_a_text_without_maskable_tokens_predicts_nothing(prepare, make_batch):
    batch = make_batch(2, 8)
    batch["input_ids"] = batch["input_ids"].at[1].set(jnp.array([CLS, SEP, *[PAD] * 6]))
    batch["input_ids"] = batch["input_ids"].at[0].set(jnp.array([CLS, 9, SEP, *[PAD] * 5]))
    prepared = prepare(batch)
    np.testing.assert_array_equal(prepared["mlm_weights"].sum(-1), [1, 0])
    assert prepared["mlm_labels"][0, 0] == 9
    np.testing.assert_array_equal(prepared["input_ids"][1], batch["input_ids"][1])


@pytest.mark.parametrize(
    ("length", "fields", "expected"),
    [
        (128, {}, 20),
        (512, {}, 77),
        (128, {"masked_lm_prob": 0.4}, 52),
        (128, {"max_predictions_per_seq": 13}, 13),
        (8, {"max_predictions_per_seq": 20}, 8),
    ],
)
def test_the_number_of_slots(length, fields, expected, encoder, make_batch):
    def prepare(batch):
        return objective(**fields).apply({}, encoder, batch, train=True, method="prepare")

    shapes = jax.eval_shape(prepare, make_batch(3, length, full=True))
    assert all(shapes[name].shape == (3, expected) for name in NEW[1:])


def test_shares_reach_the_corruption(prepare, make_batch):
    batch = make_batch()
    prepared = prepare(batch, mask_share=1.0, random_share=0.0)
    changed = np.asarray(prepared["input_ids"] != batch["input_ids"])
    assert np.all(np.asarray(prepared["input_ids"])[changed] == MASK)
    assert changed.sum() == prepared["mlm_weights"].sum()
    kept = prepare(batch, mask_share=0.0, random_share=0.0)
    np.testing.assert_array_equal(kept["input_ids"], batch["input_ids"])
    random = prepare(batch, mask_share=0.0, random_share=1.0)
    assert np.mean(np.asarray(random["input_ids"])[changed] == MASK) < 0.2
    assert np.mean(np.asarray(random["input_ids"] != batch["input_ids"])[changed]) > 0.8


def test_replacements_are_never_special(prepare, make_batch):
    random = prepare(make_batch(full=True), mask_share=0.0, random_share=1.0)
    hidden = np.take_along_axis(*map(np.asarray, (random["input_ids"], random["mlm_positions"])), 1)
    assert np.all(hidden > MASK)


def masks_of(prepared):
    """The mask of each example in a form that can be compared."""
    rows = zip(*(np.asarray(prepared[name]).tolist() for name in NEW), strict=True)
    return [str(row) for row in rows]


def test_masks_do_not_repeat(prepare, make_batch):
    """In 25 steps each of 8 equal texts has a different mask."""
    seen = set()
    for step in range(25):
        batch = make_batch(full=True, step=step)
        batch["input_ids"] = jnp.broadcast_to(batch["input_ids"][:1], batch["input_ids"].shape)
        seen |= set(masks_of(prepare(batch)))
    assert len(seen) == 25 * 8
    other_seed = prepare(make_batch(full=True, seed=1))
    assert not set(masks_of(other_seed)) & set(masks_of(prepare(make_batch(full=True))))


@pytest.mark.parametrize("masking", ["token", "word", "ngram", "span"])
def test_masks_are_the_same_on_any_number_of_devices(masking, prepare, make_batch):
    """On one device, and on one per row."""
    batch = make_batch(step=3)
    mesh = Mesh(jax.devices(), ("data",))
    spread = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
    assert len(spread["input_ids"].addressable_shards) == 8
    alone, together = (prepare(rows, masking=masking) for rows in (batch, spread))
    assert together.keys() == alone.keys()
    for name in (*NEW, *({"mlm_spans"} & alone.keys())):
        np.testing.assert_array_equal(together[name], alone[name])


def test_masks_are_the_same_with_any_number_of_microbatches(prepare, make_batch):
    batch = make_batch(step=3)
    whole, parts = prepare(batch), split_microbatches(batch, 4, 1)
    for index in range(4):
        part = prepare({name: rows[index, 0] for name, rows in parts.items()})
        for name in NEW:
            np.testing.assert_array_equal(part[name], whole[name][index::4])


def test_static_masks_belong_to_the_example(prepare, make_batch):
    first = prepare(make_batch(full=True), static=True)
    later = prepare(make_batch(full=True, step=17, seed=5), static=True)
    assert masks_of(first) == masks_of(later)
    # In another order, on another row, it is still the example's own.
    turned = jax.tree.map(lambda rows: rows[::-1], make_batch(full=True, step=9))
    assert masks_of(prepare(turned, static=True)) == masks_of(first)[::-1]


def test_static_masks_differ_between_examples_and_seeds(prepare, make_batch):
    batch = make_batch(full=True)
    batch["input_ids"] = jnp.broadcast_to(batch["input_ids"][:1], batch["input_ids"].shape)
    masks = masks_of(prepare(batch, static=True))
    assert len(set(masks)) == 8
    assert not set(masks) & set(masks_of(prepare(batch, static=True, seed=1)))


@pytest.mark.parametrize("masking", ["word", "ngram", "span"])
def test_masks_of_words_require_word_starts(masking, encoder, make_batch):
    batch = make_batch()
    del batch["word_starts"]
    with pytest.raises(UserError, match=f"masking='{masking}' requires word_starts"):
        objective(masking=masking).apply({}, encoder, batch, train=True, method="prepare")


def test_an_unknown_masking(encoder, make_batch):
    with pytest.raises(
        UserError, match=r"masking: got 'spam', expected one of .*; did you mean 'span'"
    ):
        objective(masking="spam").apply({}, encoder, make_batch(), train=True, method="prepare")


def test_a_span_is_masked_replaced_or_kept_as_a_whole(prepare, make_batch):
    kinds = {"masked": 0, "random": 0, "kept": 0}
    for step in range(20):
        batch = make_batch(full=True, step=step)
        prepared = prepare(batch, masking="span", mask_share=0.4, random_share=0.3)
        before, after = np.asarray(batch["input_ids"]), np.asarray(prepared["input_ids"])
        rows, places = np.nonzero(np.asarray(prepared["mlm_weights"]))
        spans = np.asarray(prepared["mlm_spans"])[rows, places].tolist()
        for row, first, last in {(row, *span) for row, span in zip(rows, spans, strict=True)}:
            old, new = before[row, first : last + 1], after[row, first : last + 1]
            kind = "masked" if np.all(new == MASK) else "kept" if np.all(new == old) else "random"
            assert kind == "masked" or not np.any(new == MASK)
            kinds[kind] += 1
    total = sum(kinds.values())
    assert total > 300
    error = 4.5 * 0.5 / total**0.5 + 0.02  # a random token may be the one that was there
    assert kinds["masked"] / total == pytest.approx(0.4, abs=error)
    assert kinds["random"] / total == pytest.approx(0.3, abs=error)


def test_whole_words_are_masked(prepare, make_batch):
    whole = cut = 0
    for step in range(10):
        batch = make_batch(step=step)
        prepared = prepare(batch, masking="word")
        word = np.cumsum(batch["word_starts"], axis=-1)
        maskable = np.asarray(batch["input_ids"]) >= 5
        hidden = np.zeros(word.shape, bool)
        np.put_along_axis(hidden, np.asarray(prepared["mlm_positions"]), True, axis=-1)
        hidden &= maskable
        for row in range(8):
            for index in np.unique(word[row][hidden[row]]):
                members = (word[row] == index) & maskable[row]
                whole += np.all(hidden[row][members])
                cut += not np.all(hidden[row][members])
    assert cut <= 10 * 8
    assert whole > 5 * cut


def test_given_predictions_are_kept(prepare, make_batch):
    prepared = prepare(make_batch())
    again = prepare(prepared)
    for name in prepared:
        np.testing.assert_array_equal(*(jax.random.key_data(x) if name == "example_key" else x
                                        for x in (again[name], prepared[name])))  # fmt: skip


def test_padding_rows_have_no_loss(prepare, make_batch):
    batch = make_batch() | {"example_weight": jnp.array([1.0, 0, 1, 1, 0, 1, 1, 0])}
    weights = prepare(batch)["mlm_weights"]
    np.testing.assert_array_equal(weights.any(-1), batch["example_weight"] > 0)


def test_tokens_hidden_by_a_visible_matrix_are_not_masked(encoder, make_batch):
    batch = make_batch(full=True)
    matrix = jnp.ones((8, 40, 40), bool).at[:, :, 7:].set(False).at[:, 3, 8].set(True)
    maskable = objective().maskable(batch | {"attention_mask": matrix})
    expected = np.isin(np.arange(40), [1, 2, 3, 4, 5, 6, 8])
    np.testing.assert_array_equal(maskable, np.broadcast_to(expected, (8, 40)))


class Loss(nn.Module):
    """The objective with an encoder of given outputs."""

    encoder: nn.Module
    objective: nn.Module

    def __call__(self, sequence, batch, train=False):
        return self.objective.loss(self.encoder, Encoded(sequence), batch, train=train)

    def logits(self, sequence, positions):
        return self.objective.logits(self.encoder, sequence, positions)


def test_the_loss_by_hand(encoder, random_variables):
    generator = np.random.default_rng(3)
    sequence = jnp.asarray(generator.normal(size=(2, 5, 6)), jnp.float32)
    batch = {
        "mlm_positions": jnp.array([[4, 1, 0], [2, 0, 0]]),
        "mlm_labels": jnp.array([[7, 60, 2], [9, 2, 2]]),
        "mlm_weights": jnp.array([[1.0, 1, 0], [1, 0, 0]]),
    }
    module = Loss(encoder, objective())
    variables = random_variables(module, sequence, batch)
    parameters = jax.tree.map(np.asarray, variables["params"])
    assert set(parameters["objective"]) == {"transform", "bias"}

    places = [(0, 4, 7), (0, 1, 60), (1, 2, 9)]
    transform = parameters["objective"]["transform"]
    table = parameters["encoder"]["word_embeddings"]["embedding"]
    expected_loss = expected_correct = 0
    for row, position, label in places:
        hidden = np.asarray(sequence)[row, position] @ transform["dense"]["kernel"]
        hidden = hidden + transform["dense"]["bias"]
        hidden = hidden * scipy.special.ndtr(hidden)
        hidden = (hidden - hidden.mean()) / np.sqrt(hidden.var() + 1e-12)
        hidden = hidden * transform["norm"]["scale"] + transform["norm"]["bias"]
        logits = table @ hidden + parameters["objective"]["bias"]
        expected_loss += scipy.special.logsumexp(logits) - logits[label]
        expected_correct += logits.argmax() == label
    loss, weight, metrics = module.apply(variables, sequence, batch)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert weight == 3
    assert metrics["accuracy"] == (expected_correct, 3)

    # Label smoothing and z-loss are part of the loss in training, not in evaluation.
    options = {"label_smoothing": 0.2, "z_loss": 0.01}
    regularised = Loss(encoder, objective(**options))
    assert regularised.apply(variables, sequence, batch)[0] == loss
    logits = module.apply(variables, sequence, batch["mlm_positions"], method="logits")
    total = losses.cross_entropy(logits, batch["mlm_labels"], batch["mlm_weights"], **options)
    assert regularised.apply(variables, sequence, batch, train=True)[0] == pytest.approx(total)
    assert abs(total - loss) > 0.1

    # The best labels count as correct.
    logits = module.apply(variables, sequence, batch["mlm_positions"], method="logits")
    best = batch | {"mlm_labels": logits.argmax(-1)}
    assert module.apply(variables, sequence, best)[2]["accuracy"] == (3, 3)
