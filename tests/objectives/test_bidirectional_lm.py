"""The bidirectional language model: contexts and loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.objectives import bidirectional_lm
from bertjax.pretrainer import Encoded

PAD, UNK, CLS, SEP = 0, 1, 2, 3
V, P = 13, 3
IDS = jnp.asarray([[CLS, 5, 12, UNK, SEP, PAD], [CLS, 7, SEP, PAD, PAD, PAD]])
BATCH = {"input_ids": IDS, "attention_mask": IDS != PAD}


@pytest.fixture(scope="module")
def model(encoder):
    return encoder.clone(vocab_size=V, hidden_size=2 * P)


@pytest.fixture(scope="module")
def sequence():
    values = np.random.default_rng(0).normal(size=(*IDS.shape, 2 * P))
    return jnp.asarray(values, jnp.float32)


def objective(**fields):
    return bidirectional_lm.Objective((PAD, UNK, CLS, SEP, 4), UNK, positions_at_a_time=4, **fields)


def run(module, model, sequence, batch=BATCH):
    params = {
        "table": jnp.asarray(np.random.default_rng(1).normal(size=(module.softmax_size or V, P))),
        "bias": jnp.arange(module.softmax_size or V) / 10,
    }
    given = model, Encoded(sequence), batch
    return params, module.apply({"params": params}, *given, train=False, method="loss")


@pytest.mark.parametrize("size", [0, 9])
def test_each_word_is_predicted_from_both_sides(model, sequence, size):
    params, (loss, weight, metrics) = run(objective(softmax_size=size), model, sequence)
    # (row, place, label): words and the unknown word, no marks. With nine classes 12 is unknown.
    predicted = [(0, 1, 5), (0, 2, 12 if not size else UNK), (0, 3, UNK), (1, 1, 7)]
    sides = {"forward": 0.0, "backward": 0.0}
    for row, place, label in predicted:
        for name, hidden in (
            ("forward", sequence[row, place - 1, :P]),
            ("backward", sequence[row, place + 1, P:]),
        ):
            scores = params["table"] @ hidden + params["bias"]
            sides[name] += float(jax.nn.logsumexp(scores) - scores[label])
    assert weight == 2 * len(predicted)
    assert loss == pytest.approx(sum(sides.values()), rel=1e-5)
    for name, value in sides.items():
        assert metrics[f"{name}_loss"][0] == pytest.approx(value, rel=1e-5)
        assert metrics[f"{name}_loss"][1] == len(predicted)


def test_padding_examples_do_not_count(model, sequence):
    weights = {"example_weight": jnp.asarray([1.0, 0.0])}
    _, (_, weight, _) = run(objective(), model, sequence, BATCH | weights)
    assert weight == 6


def test_logits_of_a_whole_batch_are_not_materialised(model, sequence):
    """Invariant 6: no array has a value for each position and word."""
    module = objective()
    jaxpr = jax.make_jaxpr(lambda s: run(module, model, s)[1][0])(sequence)
    assert f"{IDS.shape[0]},{IDS.shape[1]},{V}" not in str(jaxpr)


def test_an_impossible_softmax_is_one_line(model, sequence):
    with pytest.raises(UserError, match="softmax_size: got 14, expected at most 13"):
        run(objective(softmax_size=14), model, sequence)
