"""The NER head: loss by hand, weights, first tokens of words."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from bertjax.pretrainer import Pretrainer
from bertjax.tasks.ner import head as ner_head

LABELS = np.array([[0, 1, 0, 3, 2, 1, 0], [0, 2, 2, 0, 0, 0, 0]])
"""1 + the class where a word begins."""


@pytest.fixture(scope="module")
def module(lookup):
    return Pretrainer(lookup(), {"ner": lambda: ner_head.Task(("O", "B-X", "I-X"))})


@pytest.fixture(scope="module")
def params():
    random = np.random.default_rng(0)
    dense = {"kernel": random.normal(size=(5, 3)), "bias": random.normal(size=3)}
    head = {"classifier": {"dense": {name: jnp.float32(x) for name, x in dense.items()}}}
    table = jnp.float32(random.normal(size=(11, 5)))
    return {"params": {"encoder": {"table": table}, "ner": head}}


@pytest.fixture(scope="module")
def logits(params, token_batch):
    table = np.asarray(params["params"]["encoder"]["table"], np.float64)
    head = params["params"]["ner"]["classifier"]["dense"]
    batch = token_batch(2)
    sequence = table[np.asarray(batch["input_ids"])]
    sequence *= np.asarray(batch["attention_mask"])[..., None]
    return sequence @ np.asarray(head["kernel"]) + np.asarray(head["bias"])


@pytest.mark.parametrize("weights", [[1, 1], [1, 0]])
def test_the_loss_by_hand(module, params, token_batch, logits, weights):
    batch = token_batch(2, token_labels=LABELS, example_weight=np.float32(weights))
    losses, metrics = module.apply(params, batch, train=False)
    counted = (LABELS > 0) & np.array(weights, bool)[:, None]
    chosen = log_softmax(logits, axis=-1)[counted, LABELS[counted] - 1]
    total, weight = losses["ner"]
    assert float(weight) == counted.sum()
    assert float(total) == pytest.approx(-chosen.sum(), rel=1e-5)
    right = (logits.argmax(axis=-1)[counted] == LABELS[counted] - 1).sum()
    assert float(metrics["ner/accuracy"][0]) == right


def test_every_token_gets_its_most_likely_class(module, params, token_batch, logits):
    batch = token_batch(2, token_labels=LABELS)
    found = module.apply(params, batch, method="predict")
    np.testing.assert_array_equal(found, logits.argmax(axis=-1))
