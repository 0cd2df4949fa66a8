"""The span boundary objective: loss by hand, and inputs from the two neighbours only."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax.errors import UserError
from bertjax.objectives import mlm, sbo
from bertjax.pretrainer import Encoded

PAD, CLS, SEP, MASK = 0, 2, 3, 4
VOCABULARY, D, L = 61, 6, 9


class Loss(nn.Module):
    """The objective with an encoder of given outputs."""

    encoder: nn.Module
    objective: nn.Module

    def __call__(self, sequence, batch):
        return self.objective.loss(self.encoder, Encoded(sequence), batch, train=False)


def spans(*rows):
    """First and last tokens, padded to five predictions a row."""
    return jnp.array([row + [[0, 0]] * (5 - len(row)) for row in rows])


@pytest.fixture
def batch():
    """Row 0 masks [2 3 4] and [6]; row 1 masks [0 1], which has no left neighbour, and [7]."""
    return {
        "mlm_positions": jnp.array([[2, 3, 4, 6, 0], [0, 1, 7, 0, 0]]),
        "mlm_spans": spans([[2, 4], [2, 4], [2, 4], [6, 6]], [[0, 1], [0, 1], [7, 7]]),
        "mlm_labels": jnp.array([[7, 60, 5, 9, 2], [11, 12, 13, 2, 2]]),
        "mlm_weights": jnp.array([[1.0, 1, 1, 1, 0], [1, 1, 1, 0, 0]]),
        "attention_mask": jnp.ones((2, L), bool),
    }


@pytest.fixture
def sequence():
    return jnp.asarray(np.random.default_rng(3).normal(size=(2, L, D)), jnp.float32)


def transformed(x, parameters):
    x = x @ parameters["dense"]["kernel"] + parameters["dense"]["bias"]
    x = x * scipy.special.ndtr(x)
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
    return x * parameters["norm"]["scale"] + parameters["norm"]["bias"]


def test_the_loss_by_hand(encoder, batch, sequence, random_variables):
    module = Loss(encoder, sbo.Objective(num_positions=7, position_embedding_size=5))
    variables = random_variables(module, sequence, batch)
    parameters = jax.tree.map(np.asarray, variables["params"])
    own = parameters["objective"]
    assert set(own) == {"position_embeddings", "first", "second", "bias"}
    assert own["position_embeddings"]["embedding"].shape == (7, 5)
    assert own["first"]["dense"]["kernel"].shape == (2 * D + 5, D)

    # Row, before, after, place in the span, label.
    places = [(0, 1, 5, 0, 7), (0, 1, 5, 1, 60), (0, 1, 5, 2, 5), (0, 5, 7, 0, 9), (1, 6, 8, 0, 13)]
    expected_loss = expected_correct = 0
    for row, before, after, place, label in places:
        position = own["position_embeddings"]["embedding"][place]
        hidden = np.concatenate([sequence[row, before], sequence[row, after], position])
        hidden = transformed(transformed(hidden, own["first"]), own["second"])
        logits = parameters["encoder"]["word_embeddings"]["embedding"] @ hidden + own["bias"]
        expected_loss += scipy.special.logsumexp(logits) - logits[label]
        expected_correct += logits.argmax() == label
    loss, weight, metrics = module.apply(variables, sequence, batch)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert weight == 5
    assert metrics["accuracy"] == (expected_correct, 5)


def test_the_inputs_of_the_span_boundary_objective_are_the_boundary_tokens(
    encoder, batch, sequence, random_variables
):
    module = Loss(encoder, sbo.Objective())
    variables = random_variables(module, sequence, batch)
    slopes = jax.grad(lambda x: module.apply(variables, x, batch)[0])(sequence)
    has_effect = np.abs(slopes).max(axis=-1) > 0
    expected = np.zeros((2, L), bool)
    expected[0, [1, 5, 7]] = expected[1, [6, 8]] = True
    np.testing.assert_array_equal(has_effect, expected)


def test_a_missing_neighbour_or_position_has_no_loss(encoder, batch, sequence, random_variables):
    def weight(objective, **changes):
        module = Loss(encoder, objective)
        variables = random_variables(module, sequence, batch)
        return module.apply(variables, sequence, batch | changes)[1]

    assert weight(sbo.Objective(num_positions=2)) == 4
    # Row 0 ends with its second span, row 1 with its only one: no token follows.
    short = jnp.arange(L) < jnp.array([[7], [8]])
    assert weight(sbo.Objective(), attention_mask=short) == 3
    last = spans([[2, 4], [2, 4], [2, 4], [8, 8]], [[0, 1], [0, 1], [8, 8]])
    positions = jnp.array([[2, 3, 4, 8, 0], [0, 1, 8, 0, 0]])
    assert weight(sbo.Objective(), mlm_spans=last, mlm_positions=positions) == 3
    # Documents end before token 5 and after it: the neighbours of [2 3 4] are of two.
    packed = jnp.asarray([[1] * 5 + [2] * (L - 5), [1] * L])
    assert weight(sbo.Objective(), pack_ids=packed) == 2


def test_the_span_boundary_objective_uses_the_spans_masked_by_mlm(encoder, make_batch):
    batch = make_batch(full=True)
    hiding = mlm.Objective(
        mask_id=MASK, special_ids=(PAD, 1, CLS, SEP), vocab_size=VOCABULARY, masking="span"
    )
    prepared = hiding.apply({}, encoder, batch, train=True, method="prepare")
    spans, positions = np.asarray(prepared["mlm_spans"]), np.asarray(prepared["mlm_positions"])
    is_predicted = np.asarray(prepared["mlm_weights"]) > 0
    assert np.all((spans[..., 0] <= positions) & (positions <= spans[..., 1]) | ~is_predicted)
    module = Loss(encoder, sbo.Objective())
    sequence = jnp.zeros((8, 40, D))
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), sequence, prepared))
    variables = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), nn.meta.unbox(variables))
    # [CLS] and [SEP] stand around every text, so that every span has its neighbours.
    assert module.apply(variables, sequence, prepared)[1] == is_predicted.sum()


def test_the_span_boundary_objective_requires_spans(encoder, batch, sequence):
    del batch["mlm_spans"]
    with pytest.raises(UserError, match="put mlm before it, with"):
        Loss(encoder, sbo.Objective()).init(jax.random.key(0), sequence, batch)
