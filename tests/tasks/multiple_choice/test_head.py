"""The multiple-choice head: loss by hand over the answers of a question, weights."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from bertjax.errors import UserError
from bertjax.pretrainer import Pretrainer
from bertjax.tasks.multiple_choice import head as multiple_choice_head

RIGHT = np.array([2, 0])
LABELS = np.eye(3, dtype=int)[RIGHT].reshape(-1)


@pytest.fixture(scope="module")
def module(lookup):
    task = multiple_choice_head.Task(num_choices=3)
    return Pretrainer(lookup(), {"multiple_choice": lambda: task})


@pytest.fixture(scope="module")
def params():
    random = np.random.default_rng(0)
    dense = {"kernel": jnp.float32(random.normal(size=(5, 1))), "bias": jnp.ones(1)}
    table = jnp.float32(random.normal(size=(11, 5)))
    head = {"classifier": {"dense": dense}}
    return {"params": {"encoder": {"table": table}, "multiple_choice": head}}


@pytest.fixture(scope="module")
def scores(params, token_batch):
    arrays = params["params"]
    first = np.asarray(arrays["encoder"]["table"])[np.asarray(token_batch(6)["input_ids"][:, 0])]
    kernel = np.asarray(arrays["multiple_choice"]["classifier"]["dense"]["kernel"])
    return (first @ kernel).reshape(2, 3) + 1


@pytest.mark.parametrize("weights", [[1, 1], [1, 0]])
def test_the_loss_by_hand(module, params, token_batch, scores, weights):
    each = np.repeat(np.float32(weights), 3)
    batch = token_batch(6, labels=LABELS, example_weight=each)
    losses, metrics = module.apply(params, batch, train=False)
    chosen = log_softmax(scores, axis=-1)[[0, 1], RIGHT] * weights
    total, weight = losses["multiple_choice"]
    assert float(weight) == sum(weights)
    assert float(total) == pytest.approx(-chosen.sum(), rel=1e-5)
    right = (scores.argmax(axis=-1) == RIGHT) @ np.array(weights)
    assert float(metrics["multiple_choice/accuracy"][0]) == right


def test_every_answer_gets_its_score(module, params, token_batch, scores):
    found = module.apply(params, token_batch(6), method="predict")
    np.testing.assert_allclose(found, scores.reshape(-1), rtol=1e-5)


def test_an_incomplete_question_is_one_line(module, params, token_batch):
    with pytest.raises(UserError, match=r"4 sequences per microbatch, expected a multiple of"):
        module.apply(params, token_batch(4), method="predict")
