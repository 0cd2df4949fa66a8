"""Sentence pair classification from the pooled output."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax.objectives.sentence_pair import Objective
from bertjax.pretrainer import Encoded


class Loss(nn.Module):
    """The objective with an encoder of given outputs."""

    encoder: nn.Module
    objective: nn.Module

    def __call__(self, pooled, batch):
        sequence = jnp.zeros((len(pooled), 1, pooled.shape[1]))
        return self.objective.loss(self.encoder, Encoded(sequence, pooled), batch, train=False)


@pytest.fixture
def pooled():
    return jnp.asarray(np.random.default_rng(0).normal(size=(5, 6)), jnp.float32)


@pytest.mark.parametrize("example_weight", [None, [1.0, 1, 0, 1, 0]])
def test_the_loss_by_hand(example_weight, encoder, pooled, random_variables):
    batch = {"pair_label": jnp.array([0, 1, 1, 0, 1])}
    if example_weight:
        batch["example_weight"] = jnp.array(example_weight)
    module = Loss(encoder, Objective())
    variables = random_variables(module, pooled, batch)
    dense = variables["params"]["objective"]["classifier"]["dense"]
    logits = np.asarray(pooled @ dense["kernel"] + dense["bias"])
    losses = scipy.special.logsumexp(logits, -1) - logits[np.arange(5), batch["pair_label"]]
    correct = logits.argmax(-1) == batch["pair_label"]
    weights = np.asarray(example_weight or np.ones(5))
    loss, weight, metrics = module.apply(variables, pooled, batch)
    assert loss == pytest.approx((weights * losses).sum(), rel=1e-5)
    assert weight == weights.sum()
    assert metrics["accuracy"] == ((weights * correct).sum(), weights.sum())
    assert 0 < metrics["accuracy"][0] < weights.sum()
