"""The permutation language model: keyed sampling, exact budgets, no [B L V] (invariants 1, 6)."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax.errors import UserError
from bertjax.models.xlnet import Model
from bertjax.objectives.permutation_lm import Objective
from bertjax.pretrainer import Encoded, Pretrainer

PAD, CLS, SEP, VOCABULARY = 0, 2, 3, 61
SPECIAL = (PAD, 1, CLS, SEP, 4)
NEW = {"prediction_order", "mlm_positions", "mlm_labels", "mlm_weights"}


@pytest.fixture(scope="module")
def prepare(encoder):
    def run(batch, **fields):
        def plain(batch):
            objective = Objective(SPECIAL, **fields)
            return objective.apply({}, encoder, batch, train=True, method="prepare")

        prepared = dict(jax.jit(plain)(batch))
        del prepared["example_key"]
        return jax.tree.map(np.asarray, prepared)

    return run


@pytest.mark.parametrize("fields", [{}, {"partial_prediction": 3.0, "whole_word": False}])
def test_an_exact_share_is_predicted_and_the_text_stays(fields, prepare, make_batch):
    batch = make_batch()
    prepared = prepare(batch, **fields)
    assert set(prepared) == {*batch, *NEW} - {"example_key"}
    ids = prepared["input_ids"]
    np.testing.assert_array_equal(ids, batch["input_ids"])
    special = np.isin(ids, SPECIAL)
    attention_mask = prepared["attention_mask"]
    share = fields.get("partial_prediction", 6.0)
    expected = np.round((attention_mask & ~special).sum(axis=1) / share)
    np.testing.assert_array_equal(prepared["mlm_weights"].sum(axis=1), expected)
    targets = np.zeros(ids.shape, bool)
    for row, (at, real) in enumerate(
        zip(prepared["mlm_positions"], prepared["mlm_weights"] > 0, strict=True)
    ):
        targets[row, at[real]] = True
    assert not (targets & (special | ~attention_mask)).any()
    ordered = prepared["prediction_order"] >= 0
    np.testing.assert_array_equal(ordered, targets | (special & attention_mask))
    np.testing.assert_array_equal(
        prepared["mlm_labels"], np.take_along_axis(ids, prepared["mlm_positions"], axis=1)
    )


def test_samples_do_not_depend_on_the_batch(prepare, make_batch):
    batch = make_batch()
    whole, half = prepare(batch), prepare(jax.tree.map(lambda rows: rows[4:], batch))
    for name in NEW:
        np.testing.assert_array_equal(whole[name][4:], half[name])
    later = prepare(make_batch(step=1))
    assert (later["prediction_order"] != whole["prediction_order"]).any()
    assert (later["mlm_positions"] != whole["mlm_positions"]).any()


def test_given_predictions_are_kept_and_word_starts_required(prepare, make_batch):
    prepared = prepare(make_batch())
    again = prepare({**make_batch(step=1), **prepared})
    for name, values in prepared.items():
        np.testing.assert_array_equal(again[name], values)
    plain = make_batch()
    del plain["word_starts"]
    with pytest.raises(UserError, match="whole_word=True requires word_starts"):
        prepare(plain)


@pytest.fixture(scope="module")
def pretrainer():
    model = Model(VOCABULARY, 6, 2, 2, 5)
    return Pretrainer(model, {"permutation_lm": lambda: Objective(SPECIAL)})


def test_the_loss_by_hand(pretrainer, random_variables, make_batch):
    batch = make_batch()
    batch["example_weight"] = jnp.asarray([1.0] * 5 + [0.0] * 3)
    variables = random_variables(pretrainer, batch, train=False)

    def parts(module, batch):
        batch = module.prepare(batch, train=False)
        return batch, module.encoder(batch, train=False).queries

    prepared, queries = pretrainer.apply(variables, batch, method=parts)
    params = variables["params"]
    table = np.asarray(params["encoder"]["word_embeddings"]["embedding"], np.float64)
    logits = np.asarray(queries, np.float64) @ table.T + params["permutation_lm"]["bias"]
    chosen = np.take_along_axis(logits, np.asarray(prepared["mlm_labels"])[..., None], 2)[..., 0]
    expected = scipy.special.logsumexp(logits, axis=-1) - chosen
    weights = np.asarray(prepared["mlm_weights"])
    assert not weights[5:].any()
    losses, metrics = pretrainer.apply(variables, batch, train=False)
    expected = float((weights * np.asarray(expected)).sum())
    assert float(losses["permutation_lm"][0]) == pytest.approx(expected, rel=1e-4)
    assert losses["permutation_lm"][1] == weights.sum()
    correct = (logits.argmax(-1) == np.asarray(prepared["mlm_labels"])) * weights
    assert metrics["permutation_lm/accuracy"][0] == correct.sum()


def test_logits_are_computed_for_predicted_positions_only(pretrainer, random_variables, make_batch):
    batch = make_batch()
    variables = random_variables(pretrainer, batch, train=False)

    def loss(params):
        return pretrainer.apply({"params": params}, batch, train=False)[0]["permutation_lm"][0]

    program = str(jax.make_jaxpr(jax.grad(loss))(variables["params"]))
    rows = {int(rows) for rows in re.findall(rf"f32\[(\d+),{VOCABULARY}\]", program)}
    assert 8 * 7 in rows
    assert not {8 * 40, 40} & rows
    assert f"f32[8,40,{VOCABULARY}]" not in program


def test_a_model_of_one_stream_is_refused(encoder, make_batch):
    encoded = Encoded(jnp.zeros((8, 40, 6)))
    with pytest.raises(UserError, match=r"set --config\.model\.name=xlnet"):
        Objective(SPECIAL).init(
            jax.random.key(0), encoder, encoded, make_batch(), train=True, method="loss"
        )
