"""Losses of embeddings, compared with the equations of their papers, written as loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import contrastive, text_embeddings

B, G, D = 7, 3, 5
TEMPERATURE = 0.3


def cos(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(0).normal(size=(B, G, D)).astype(np.float32)


IDS = np.arange(B * G).reshape(B, G)
IDS[3, 1] = IDS[0, 1]  # the same positive
IDS[4, 0] = IDS[1, 0]  # the same anchor: the positive of each is one of the other, too
IDS[5, 1] = IDS[2, 0]  # an anchor that is the positive of another row
WEIGHTS = np.array([1, 1, 1, 1, 1, 1, 0], np.float32)  # the last row is padding


def by_hand(vectors, symmetric):
    """Equation 4 of van den Oord et al. 2018, one anchor at a time."""
    total, hits = 0.0, 0
    for i in range(B - 1):
        scores = {(i, 1): cos(vectors[i, 0], vectors[i, 1]) / TEMPERATURE}
        for j in range(B - 1):
            for k in range(1, G):
                false = IDS[j, k] in (IDS[i, 0], IDS[i, 1]) or (k == 1 and IDS[j, 0] == IDS[i, 0])
                if (j != i or k > 1) and not false:
                    scores[j, k] = cos(vectors[i, 0], vectors[j, k]) / TEMPERATURE
        forward = np.log(sum(map(np.exp, scores.values()))) - scores[i, 1]
        hits += max(scores, key=scores.get) == (i, 1)
        others = [
            cos(vectors[i, 1], vectors[j, 0]) / TEMPERATURE
            for j in range(B - 1)
            if j == i or not (IDS[j, 0] in (IDS[i, 0], IDS[i, 1]) or IDS[j, 1] == IDS[i, 1])
        ]
        reverse = np.log(np.exp(others).sum()) - scores[i, 1]
        total += (forward + reverse) / 2 if symmetric else forward
    return total, hits


@pytest.mark.parametrize("symmetric", [False, True])
def test_in_batch_negatives_are_those_of_the_paper(vectors, symmetric):
    (loss, weight), hits = contrastive.in_batch_negatives(
        jnp.asarray(vectors),
        jnp.asarray(IDS),
        jnp.asarray(WEIGHTS),
        temperature=TEMPERATURE,
        symmetric=symmetric,
    )
    expected, expected_hits = by_hand(vectors.astype(np.float64), symmetric)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert (float(weight), float(hits)) == (B - 1, expected_hits)


def test_cosent_and_regression_are_those_of_their_papers(vectors):
    pairs, scores = vectors[:, :2].astype(np.float64), np.array([3, 1, 3, 0.5, 2, 2, 9.0])
    cosines = np.array([cos(*pair) for pair in pairs])
    terms = [
        np.exp((cosines[j] - cosines[i]) / TEMPERATURE)
        for i in range(B - 1)
        for j in range(B - 1)
        if scores[i] > scores[j]
    ]
    arrays = [jnp.asarray(each, jnp.float32) for each in (pairs, scores, WEIGHTS)]
    loss, weight = contrastive.cosent(*arrays, temperature=TEMPERATURE)
    assert float(loss / weight) == pytest.approx(np.log(1 + sum(terms)), rel=1e-5)
    loss, weight = contrastive.cosine_regression(*arrays)
    assert float(loss) == pytest.approx(((cosines - scores)[:-1] ** 2).sum(), rel=1e-5)
    assert float(weight) == B - 1


TEACHER = np.random.default_rng(1).normal(0, 4, size=(B, G - 1)).astype(np.float32)


def test_distillation_compares_the_candidates_of_a_row(vectors):
    products = np.einsum("bd,bcd->bc", vectors[:, 0], vectors[:, 1:])
    rows = [jnp.asarray(each) for each in (vectors, TEACHER, WEIGHTS)]
    loss, weight = contrastive.margin_mse(*rows)
    margins = [p[0] - p[1] - (t[0] - t[1]) for p, t in zip(products, TEACHER, strict=True)]
    assert float(loss) == pytest.approx(np.square(margins[:-1]).sum(), rel=1e-5)
    assert float(weight) == B - 1
    expected = 0.0
    for row, teacher in zip(vectors[:-1], TEACHER[:-1], strict=True):
        own = np.exp([cos(row[0], each) / TEMPERATURE for each in row[1:]])
        target = np.exp(teacher) / np.exp(teacher).sum()
        expected += (target * np.log(target / (own / own.sum()))).sum()
    loss, weight = contrastive.candidate_kl(*rows, temperature=TEMPERATURE)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(weight) == B - 1


def test_losses_have_finite_gradients_without_any_negative(vectors):
    ids, weights = jnp.zeros((B, G), jnp.int32), jnp.asarray(WEIGHTS)

    def loss(rows):
        (value, _), _ = contrastive.in_batch_negatives(rows, ids, weights, temperature=0.05)
        scores = jnp.ones(B)
        return value + contrastive.cosent(rows[:, :2], scores, weights, temperature=0.05)[0]

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(vectors))
    assert float(value) == pytest.approx(0.0, abs=1e-5)
    assert np.isfinite(np.asarray(gradient)).all()
    assert not np.asarray(text_embeddings.unit_vectors(jnp.zeros((2, D)))).any()


@pytest.mark.slow
def test_the_losses_equal_those_of_sentence_transformers(vectors):
    library = pytest.importorskip(
        "sentence_transformers", reason="needs sentence-transformers, of the group test-all"
    )
    import torch

    losses = library.sentence_transformer.losses
    rows = [torch.tensor(vectors[:, n]) for n in range(G)]
    scores = torch.tensor([3, 1, 3, 0.5, 2, 2, 9.0])
    ids, weights = jnp.arange(B * G).reshape(B, G), jnp.ones(B)
    (loss, _), _ = contrastive.in_batch_negatives(
        jnp.asarray(vectors), ids, weights, temperature=0.05
    )
    reference = losses.MultipleNegativesRankingLoss(None, scale=20.0)
    assert float(loss / B) == pytest.approx(
        float(reference.compute_loss_from_embeddings(rows, None)), rel=1e-5
    )
    reference = losses.CoSENTLoss(None, scale=20.0)
    arrays = jnp.asarray(vectors[:, :2]), jnp.asarray(scores.numpy()), weights
    loss, weight = contrastive.cosent(*arrays, temperature=0.05)
    assert float(loss / weight) == pytest.approx(
        float(reference.compute_loss_from_embeddings(rows[:2], scores)), rel=1e-5
    )
    arrays = jnp.asarray(vectors), jnp.asarray(TEACHER), weights
    loss, weight = contrastive.margin_mse(*arrays)
    reference = losses.MarginMSELoss(None)
    assert float(loss / weight) == pytest.approx(
        float(reference.compute_loss_from_embeddings(rows, torch.tensor(TEACHER))), rel=1e-5
    )
    loss, weight = contrastive.candidate_kl(*arrays, temperature=0.05)
    reference = losses.DistillKLDivLoss(
        None,
        similarity_fct=library.util.pairwise_cos_sim,
        student_temperature=0.05,
        teacher_temperature=1.0,
    )
    # The library multiplies by the square of the student's temperature.
    assert float(loss / weight) * 0.05**2 == pytest.approx(
        float(reference.compute_loss_from_embeddings(rows, torch.tensor(TEACHER))), rel=1e-4
    )
