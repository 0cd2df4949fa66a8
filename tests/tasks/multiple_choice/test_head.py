"""The multiple-choice head: loss by hand over the answers of a question, weights."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax

from bertjax.errors import UserError
from bertjax.pretrainer import Pretrainer
from bertjax.tasks.multiple_choice import head as multiple_choice_head
from bertjax.train import sharding
from bertjax.train.accumulation import split_microbatches
from bertjax.train.trainer import make_trainer

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


def test_absent_options_are_not_in_the_softmax(module, params, token_batch, scores):
    labels = np.where(np.arange(6) == 1, -1, LABELS)
    losses, _ = module.apply(params, token_batch(6, labels=labels), train=False)
    chosen = log_softmax(scores[0, [0, 2]])[1] + log_softmax(scores[1])[0]
    assert float(losses["multiple_choice"][0]) == pytest.approx(-chosen, rel=1e-5)


def test_every_answer_gets_its_score(module, params, token_batch, scores):
    found = module.apply(params, token_batch(6), method="predict")
    np.testing.assert_allclose(found, scores.reshape(-1), rtol=1e-5)


def test_an_incomplete_question_is_one_line(module, params, token_batch):
    with pytest.raises(UserError, match=r"4 sequences per microbatch, expected a multiple of"):
        module.apply(params, token_batch(4), method="predict")


def test_a_question_is_in_one_microbatch(lookup, token_batch):
    """Invariant 4; the labels of several questions differ."""
    task = multiple_choice_head.Task(num_choices=3, classifier_dropout=0.0)
    labels = np.eye(3, dtype=int)[[2, 0, 1, 1]].reshape(-1)
    batch = token_batch(12, labels=labels, example_id=np.arange(12, dtype=np.uint32))
    sizes = {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 1}
    found = []
    for microbatches in (1, 2, 4):
        trainer = make_trainer(
            Pretrainer(lookup(), {"multiple_choice": lambda: task}),
            optax.sgd(1.0),
            lambda step: jnp.asarray(0.3),
            batch,
            mesh=sharding.make_mesh(sizes, jax.devices()[:1]),
            rules=sharding.RULES,
            seed=0,
            microbatches=microbatches,
            batch_size=12,
        )
        _, metrics = trainer.train_step(trainer.create_state(), batch)
        names = ("loss", "gradient_norm", "multiple_choice/accuracy")
        found.append([float(metrics[name]) for name in names])
    np.testing.assert_allclose(found[1:], [found[0], found[0]], rtol=1e-5)


def test_microbatches_of_incomplete_questions_are_one_line(token_batch):
    with pytest.raises(UserError, match="got 12 sequences per batch, expected a multiple of 24"):
        split_microbatches(token_batch(12), parts=8, shards=1, rows_per_example=3)
