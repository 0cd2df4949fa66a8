"""Image classification and the ponder cost, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.objectives import image_class, ponder
from bertjax.pretrainer import Encoded

SEQUENCE = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 6)), jnp.float32)


def test_classes_are_predicted_from_the_first_token(encoder):
    kernel = jnp.asarray(np.random.default_rng(1).normal(size=(6, 4)), jnp.float32)
    params = {"classifier": {"dense": {"kernel": kernel, "bias": jnp.zeros(4)}}}
    batch = {"labels": jnp.asarray([3, 1]), "example_weight": jnp.asarray([1.0, 0.0])}
    loss, weight, metrics = image_class.Objective(4).apply(
        {"params": params}, encoder, Encoded(SEQUENCE), batch, train=False, method="loss"
    )
    scores = SEQUENCE[0, 0] @ kernel
    assert loss == pytest.approx(float(jax.nn.logsumexp(scores) - scores[3]), rel=1e-5)
    assert weight == 1
    assert metrics["accuracy"][0] == (scores.argmax() == 3)


def test_ponder_steps_exclude_padding(encoder):
    times = jnp.asarray([[1.5, 2.0, 9.0], [4.0, 8.0, 8.0]])
    batch = {"attention_mask": jnp.asarray([[True, True, False], [True, False, False]])}
    encoded = Encoded(SEQUENCE, ponder=times)
    loss, weight, _ = ponder.Objective().apply(
        {}, encoder, encoded, batch, train=False, method="loss"
    )
    assert (loss, weight) == (7.5, 3)


def test_a_model_that_never_halts_is_one_line(encoder):
    batch = {"attention_mask": jnp.ones((2, 3), bool)}
    with pytest.raises(UserError, match="requires a model with adaptive computation time"):
        ponder.Objective().apply({}, encoder, Encoded(SEQUENCE), batch, train=False, method="loss")
