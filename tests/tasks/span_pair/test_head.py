"""The span head by hand: spans weighted by attention, next to the pooled output."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from bertjax.pretrainer import Pretrainer
from bertjax.tasks.span_pair import head as span_pair_head

# Bit 1: the first span, bit 2: the second; they overlap in the second row.
SPANS = np.array([[0, 1, 1, 0, 0, 2, 2], [0, 2, 3, 1, 0, 0, 0]])
LABELS = np.array([1, 0])


@pytest.fixture(scope="module")
def module(lookup):
    task = span_pair_head.Task(dataset="wic", labels=("false", "true"))
    return Pretrainer(lookup(), {"span_pair": lambda: task})


@pytest.fixture(scope="module")
def params():
    random = np.random.default_rng(0)

    def dense(*shape):
        kernel, bias = random.normal(size=shape), random.normal(size=shape[1:])
        return {"dense": {"kernel": jnp.float32(kernel), "bias": jnp.float32(bias)}}

    table = jnp.float32(random.normal(size=(11, 5)))
    head = {"span_attention": dense(5, 1), "classifier": dense(15, 2)}
    return {"params": {"encoder": {"table": table}, "span_pair": head}}


@pytest.fixture(scope="module")
def logits(params, token_batch):
    """Computed token by token."""
    arrays, batch = params["params"], token_batch(2)
    table = np.asarray(arrays["encoder"]["table"], np.float64)
    attention, classifier = (
        {name: np.asarray(value) for name, value in arrays["span_pair"][each]["dense"].items()}
        for each in ("span_attention", "classifier")
    )
    rows = []
    for ids, spans in zip(np.asarray(batch["input_ids"]), SPANS, strict=True):
        features = [table[ids[0]]]
        for bit in (1, 2):
            tokens = table[ids[[bool(mark & bit) for mark in spans]]]
            weights = softmax(tokens @ attention["kernel"][:, 0] + attention["bias"][0])
            features.append(weights @ tokens)
        rows.append(np.concatenate(features) @ classifier["kernel"] + classifier["bias"])
    return np.stack(rows)


def test_logits_and_loss_by_hand(module, params, token_batch, logits):
    batch = token_batch(2, span_ids=SPANS, labels=LABELS, example_weight=np.float32([1, 0]))
    found = module.apply(params, batch, method="predict")
    np.testing.assert_allclose(found, logits, rtol=1e-5)
    wider = {
        name: jnp.pad(rows, ((0, 0), (0, 3)), constant_values=0)
        for name, rows in batch.items()
        if rows.ndim == 2
    }
    np.testing.assert_allclose(module.apply(params, wider, method="predict"), found, rtol=1e-6)
    losses, metrics = module.apply(params, batch, train=False)
    total, weight = losses["span_pair"]
    assert float(weight) == 1
    assert float(total) == pytest.approx(-log_softmax(logits, axis=-1)[0, 1], rel=1e-5)
    assert float(metrics["span_pair/accuracy"][0]) == (logits[0].argmax() == 1)
