"""The head for tables: losses with weights of classes and with several labels, by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.pretrainer import Pretrainer
from bertjax.tasks.sequence import head, labels

LOGITS = np.array([2.0, -1.0, 0.5])
WEIGHTS = [1.0, 1.0, 0.0]


def loss(lookup, token_batch, fields, rows):
    """Loss sum, weight sum and accuracy, with a kernel of zeros: every row has the same logits."""
    task = head.Task(labels=("a", "b", "c"), texts=("text",), **fields)
    batch = token_batch(3, labels=np.array(rows), example_weight=np.array(WEIGHTS))
    module = Pretrainer(lookup(), {"sequence": lambda: task})
    params = nn.meta.unbox(module.init(jax.random.key(0), batch, train=False)["params"])
    dense = {"kernel": jnp.zeros((5, 3)), "bias": jnp.array(LOGITS)}
    params |= {"sequence": {"classifier": {"dense": dense}}}
    losses, metrics = module.apply({"params": params}, batch, train=False)
    found = module.apply({"params": params}, batch, method="predict")
    np.testing.assert_allclose(found, np.tile(LOGITS, (3, 1)), rtol=1e-6)
    return (*map(float, losses["sequence"]), *map(float, metrics["sequence/accuracy"]))


def test_weights_of_classes_make_a_weighted_mean(lookup, token_batch):
    fields = {"problem_type": "single_label_classification", "loss_weights": (0.5, 3.0, 1.0)}
    nats = np.log(np.exp(LOGITS).sum()) - LOGITS
    # The third example is padding; accuracy is not weighted.
    found = loss(lookup, token_batch, fields, [0, 1, 1])
    assert found == pytest.approx((0.5 * nats[0] + 3 * nats[1], 3.5, 1.0, 2.0), rel=1e-6)


def test_several_labels_have_binary_cross_entropies(lookup, token_batch):
    fields = {"problem_type": "multi_label_classification", "loss_weights": (1.0, 7.0, 1.0)}
    rows = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1]], np.int8)
    terms = np.log1p(np.exp(np.where(rows, -LOGITS, LOGITS))) * np.where(rows, (1, 7, 1), 1)
    # The first row has exactly the labels with a positive logit.
    found = loss(lookup, token_batch, fields, rows)
    assert found == pytest.approx((terms[:2].sum() / 3, 2.0, 1.0, 2.0), rel=1e-6)


def test_balanced_weights_give_every_class_the_same_total():
    classes = np.array([0, 0, 0, 0, 1, 2, 2], np.int32)
    found = labels.loss_weights(classes, ("a", "b", "c"), ("balanced",))
    assert found == pytest.approx((7 / 12, 7 / 3, 7 / 6))
    several = np.array([[1, 1], [1, 0], [1, 0], [0, 0], [1, 0]], np.int8)
    assert labels.loss_weights(several, ("a", "b"), ("balanced",)) == pytest.approx((0.25, 4.0))
    # Of a label that all examples have, there is no example without it to balance.
    always = np.array([[1, 1], [1, 0]], np.int8)
    assert labels.loss_weights(always, ("a", "b"), ("balanced",)) == (1.0, 1.0)
    assert labels.loss_weights(classes, ("a", "b", "c"), ("b=2.5",)) == (1.0, 2.5, 1.0)
    with pytest.raises(UserError, match="got 'd=2', expected the name of a class"):
        labels.loss_weights(classes, ("a", "b", "c"), ("d=2",))
