"""Losses of embeddings of text pairs: in-batch negatives, CoSENT, regression, distillation.

All but `margin_mse` compare vectors by their cosine; all return (loss sum, weight sum). In-batch
negatives and CoSENT compare every example with all others: under jit they see the global batch, on
any mesh.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.layers import text_embeddings

Loss = tuple[Float[Array, ""], Float[Array, ""]]


def in_batch_negatives(
    vectors: Float[Array, "B G D"],
    text_ids: Int[Array, "B G"],
    weights: Float[Array, " B"],
    *,
    temperature: float,
    symmetric: bool = False,
) -> tuple[Loss, Float[Array, ""]]:
    """InfoNCE: cross entropy of the positive among all candidates of the batch, in nats.

    Van den Oord et al. 2018, equation 4; Henderson et al. 2017, section 4 ("multiple negatives").
    The candidates of an anchor are the positives and hard negatives of all rows. A candidate is
    left out where it would be a false negative: the same text as the anchor or as its positive, or
    the positive of another row with the same anchor text.

    Args:
      vectors: The anchor of each row, its positive, and any number of hard negatives.
      text_ids: Equal for equal texts.
      weights: 0 for the rows of padding, which are no candidates either.
      temperature: Divides the cosines (SimCSE, Gao et al. 2021, equation 1).
      symmetric: Whether the mean is taken with the loss of the anchor among all anchors, given the
        positive.

    Returns:
      The loss, and the weighted number of anchors whose positive has the highest score.
    """
    anchors, positives = vectors[:, 0], vectors[:, 1]
    # Positives first, so that the label of row i is i.
    candidates = vectors[:, 1:].swapaxes(0, 1).reshape(-1, vectors.shape[-1])
    excluded = excluded_candidates(text_ids, weights)
    scores = text_embeddings.cosines(anchors, candidates) / temperature
    loss_sum, hits = softmax_of_rows(scores, excluded, weights)
    if symmetric:
        anchor_ids, positive_ids = text_ids[:, 0], text_ids[:, 1]
        same_anchor = anchor_ids[:, None] == anchor_ids
        same_positive = positive_ids[:, None] == positive_ids
        excluded = (
            same_anchor | (anchor_ids == positive_ids[:, None]) | same_positive | (weights == 0)
        )
        scores = text_embeddings.cosines(positives, anchors) / temperature
        reverse, _ = softmax_of_rows(scores, excluded, weights)
        loss_sum = (loss_sum + reverse) / 2
    return (loss_sum, weights.sum()), hits


def excluded_candidates(
    text_ids: Int[Array, "B G"], weights: Float[Array, " B"]
) -> Bool[Array, "B C"]:
    """Returns a mask of the candidates that each row leaves out: false negatives and padding.

    Candidates are all positives, then all first negatives and so on; for false negatives see
    `in_batch_negatives`. The mask includes the positive of the row; `softmax_of_rows` keeps it.

    Args:
      text_ids: Equal for equal texts.
      weights: 0 for the rows of padding.
    """
    size, group = text_ids.shape
    anchor_ids, positive_ids = text_ids[:, 0], text_ids[:, 1]
    candidate_ids = text_ids[:, 1:].T.reshape(-1)
    is_padding = jnp.tile(weights == 0, group - 1)
    same_anchor = anchor_ids[:, None] == anchor_ids
    other_positive = jnp.pad(same_anchor, ((0, 0), (0, (group - 2) * size)))
    return (
        (candidate_ids == anchor_ids[:, None])
        | (candidate_ids == positive_ids[:, None])
        | other_positive
        | is_padding
    )


def softmax_of_rows(
    scores: Float[Array, "B C"], excluded: Bool[Array, "B C"], weights: Float[Array, " B"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Cross entropy of candidate i in row i, which is never excluded, and weighted hits."""
    own = jnp.arange(len(scores))
    excluded = excluded & (own[:, None] != jnp.arange(scores.shape[1]))
    scores = jnp.where(excluded, -jnp.inf, scores)
    losses = jax.nn.logsumexp(scores, axis=1) - scores[own, own]
    return jnp.sum(weights * losses), jnp.sum(weights * (scores.argmax(axis=1) == own))


def cosent(
    vectors: Float[Array, "B 2 D"],
    scores: Float[Array, " B"],
    weights: Float[Array, " B"],
    *,
    temperature: float,
) -> Loss:
    """CoSENT: pairs of texts are ranked by their cosines as by their scores (Su 2022).

    log(1 + sum of exp((cos_j - cos_i) / temperature)) over all i, j with score_i > score_j. It is
    one loss of the batch; its sum is that of the batch times the weight.

    Args:
      vectors: Both texts of each row.
      scores: Similarity of each row, on any scale.
      weights: 0 for the rows of padding.
      temperature: Divides the differences; 1 / 20 in the publication.
    """
    cosines = pair_cosines(vectors) / temperature
    is_real = weights > 0
    is_ordered = (scores[:, None] > scores) & is_real[:, None] & is_real
    differences = jnp.where(is_ordered, cosines - cosines[:, None], -jnp.inf)
    loss = jax.nn.logsumexp(jnp.append(differences.reshape(-1), 0.0))
    return loss * weights.sum(), weights.sum()


def cosine_regression(
    vectors: Float[Array, "B 2 D"], scores: Float[Array, " B"], weights: Float[Array, " B"]
) -> Loss:
    """Squared error of the cosine (Reimers and Gurevych 2019, section 3, regression objective).

    Args:
      vectors: Both texts of each row.
      scores: Similarity of each row, in [-1, 1].
      weights: 0 for the rows of padding.
    """
    return jnp.sum(weights * (pair_cosines(vectors) - scores) ** 2), weights.sum()


def margin_mse(
    vectors: Float[Array, "B G D"], scores: Float[Array, "B C"], weights: Float[Array, " B"]
) -> Loss:
    """Squared error of the margins of a positive over its negatives, as scored by a teacher.

    Hofstaetter et al. 2020, section 3.2, with dot products as scores of the student; of several
    negatives the mean.

    Args:
      vectors: The anchor of each row, its positive, and any number of hard negatives.
      scores: The teacher's, of the positive and of each negative; C = G - 1.
      weights: 0 for the rows of padding.
    """
    products = _candidate_products(vectors)
    errors = (products[:, :1] - products[:, 1:]) - (scores[:, :1] - scores[:, 1:])
    return jnp.sum(weights * jnp.mean(errors**2, axis=1)), weights.sum()


def candidate_kl(
    vectors: Float[Array, "B G D"],
    scores: Float[Array, "B C"],
    weights: Float[Array, " B"],
    *,
    temperature: float,
) -> Loss:
    """KL divergence of the distributions of teacher and student over the candidates of a row.

    ColBERTv2 (Santhanam et al. 2022, section 3.2), with cosines as scores of the student, in nats.

    Args:
      vectors: The anchor of each row, its positive, and any number of hard negatives.
      scores: The teacher's, of the positive and of each negative; C = G - 1.
      weights: 0 for the rows of padding.
      temperature: Divides the cosines.
    """
    cosines = _candidate_products(text_embeddings.unit_vectors(vectors))
    student = jax.nn.log_softmax(cosines / temperature, axis=1)
    teacher = jax.nn.log_softmax(scores, axis=1)
    divergences = jnp.sum(jnp.exp(teacher) * (teacher - student), axis=1)
    return jnp.sum(weights * divergences), weights.sum()


def _candidate_products(vectors: Float[Array, "B G D"]) -> Float[Array, "B C"]:
    """Dot products of the first vector of each row with the others."""
    precision = jax.lax.Precision.HIGHEST  # as in `text_embeddings.cosines`
    return jnp.einsum("bd,bcd->bc", vectors[:, 0], vectors[:, 1:], precision=precision)


def pair_cosines(vectors: Float[Array, "B 2 D"]) -> Float[Array, " B"]:
    """Computes the cosine of both vectors of each row."""
    return jnp.prod(text_embeddings.unit_vectors(vectors), axis=1).sum(axis=-1)
