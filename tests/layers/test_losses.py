"""Losses as weighted sums."""

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.layers import losses


def test_cross_entropy_by_hand():
    # Probabilities 1/2, 1/4, 1/4 and 1/5, 2/5, 2/5.
    logits = jnp.log(jnp.array([[[2.0, 1.0, 1.0], [1.0, 2.0, 2.0]]]))
    labels, weights = jnp.array([[0, 1]]), jnp.array([[1.0, 3.0]])
    loss = losses.cross_entropy(logits, labels, weights)
    np.testing.assert_allclose(loss, np.log(2) + 3 * np.log(2.5), rtol=1e-6)


def test_logits_of_labels_are_equal_on_accelerators_without_gather_and_scatter(random):
    logits, labels = random(2, 3, 5), jnp.array([[0, 4, 2], [1, 1, 3]])
    logits = logits.at[0, 0, 1].set(-jnp.inf)
    probe = random(2, 3)
    by_comparison, by_gather = (
        jax.vjp(lambda logits, take=take: take(logits, labels), logits)
        for take in (losses._compare, losses._gather)
    )
    np.testing.assert_array_equal(by_comparison[0], by_gather[0])
    np.testing.assert_array_equal(by_comparison[1](probe)[0], by_gather[1](probe)[0])

    gradient = jax.jit(jax.grad(losses.cross_entropy)).trace(logits, labels, probe)
    programs = {
        name: gradient.lower(lowering_platforms=(name,)).as_text() for name in ("tpu", "cpu")
    }
    assert "scatter" in programs["cpu"]
    assert not any(word in programs["tpu"] for word in ("scatter", "gather"))


def test_weight_zero_has_no_loss_and_no_gradient(random):
    logits = random(2, 3, 5)
    labels, weights = jnp.array([[0, 4, 2], [1, 1, 3]]), jnp.array([[1.0, 0, 1], [0, 0, 1]])
    gradient = jax.grad(losses.cross_entropy)(logits, labels, weights)
    np.testing.assert_array_equal(np.abs(gradient).max(-1) > 0, weights > 0)
    expected = weights[..., None] * (jax.nn.softmax(logits) - jax.nn.one_hot(labels, 5))
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_label_smoothing_and_z_loss_equal_their_definitions(random):
    """Smoothed labels are a distribution; the z-loss is added to its cross entropy."""
    logits = 3 * random(2, 3, 5)
    labels, weights = jnp.array([[0, 4, 2], [1, 1, 3]]), jnp.array([[1.0, 0, 1], [0.5, 0, 1]])

    def plain(logits):
        targets = 0.9 * jax.nn.one_hot(labels, 5) + 0.1 / 5
        losses = -jnp.sum(targets * jnp.log(jax.nn.softmax(logits)), axis=-1)
        return jnp.sum(weights * (losses + 0.3 * jnp.log(jnp.exp(logits).sum(axis=-1)) ** 2))

    def smoothed(logits):
        return losses.cross_entropy(logits, labels, weights, label_smoothing=0.1, z_loss=0.3)

    for got, expected in zip(
        *(jax.value_and_grad(f)(logits) for f in (smoothed, plain)), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_the_loss_is_float32_and_finite_for_large_logits():
    logits = jnp.array([[1e4, -1e4], [0.0, 1e4]], jnp.bfloat16)
    loss = losses.cross_entropy(logits, jnp.array([0, 0]), jnp.ones(2))
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, jnp.asarray(1e4, jnp.bfloat16).astype(jnp.float32))


def test_correct_is_the_sum_of_weights_of_correct_predictions():
    logits = jnp.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 0.5, 1.0]])
    assert losses.count_correct(logits, jnp.array([1, 1, 2]), jnp.array([1.0, 1.0, 0.25])) == 1.25


def test_of_equal_scores_the_first_is_the_predicted_one():
    logits = jnp.array([[1.0, 2.0, 2.0], [1.0, 2.0, 2.0], [jnp.nan, 1.0, 2.0]])
    assert losses.count_correct(logits[:1], jnp.array([1]), jnp.ones(1)) == 1
    assert losses.count_correct(logits[1:], jnp.array([2, 2]), jnp.ones(2)) == 0


def test_binary_cross_entropy_by_hand():
    """Logits log(1) and log(3) are probabilities of 1/2 and 3/4."""
    logits = jnp.log(jnp.array([[1.0, 3.0, 3.0]]))
    labels, weights = jnp.array([[True, True, False]]), jnp.array([[1.0, 2.0, 0.5]])
    loss = losses.sigmoid_cross_entropy(logits, labels, weights)
    np.testing.assert_allclose(loss, np.log(2) + 2 * np.log(4 / 3) + 0.5 * np.log(4), rtol=1e-6)
    great = losses.sigmoid_cross_entropy(jnp.array([1e4, -1e4]), labels[0, 1:], jnp.ones(2))
    assert great == 0


def test_divergence_by_hand():
    """At a temperature of 2: teacher probabilities 1/3, 2/3; student 1/2, 1/2.

    The second token adds nothing to the sum, because student and teacher are equal.
    """
    expected, logits = 2 * jnp.log(jnp.array([[1.0, 2.0], [1.0, 1.0]])), jnp.zeros((2, 2))
    by_hand = np.log(2 / 3) / 3 + 2 * np.log(4 / 3) / 3
    loss = losses.divergence(logits, expected, jnp.array([3.0, 5.0]), 2.0)
    np.testing.assert_allclose(loss, 3 * 4 * by_hand, rtol=1e-5)
    np.testing.assert_allclose(
        losses.divergence(expected, expected, jnp.ones(2), 2.0), 0, atol=1e-6
    )
