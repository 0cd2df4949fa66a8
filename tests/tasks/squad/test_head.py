"""The SQuAD head: loss by hand, best positions, padding, no answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from bertjax.pretrainer import Pretrainer
from bertjax.tasks.squad import head as squad_head

MARKS = np.array([[2, 0, 0, 1, 1, 1, 0], [2, 0, 1, 1, 0, 0, 0]])
LABELS = np.array([[4, 5], [0, 0]])


@pytest.fixture(scope="module")
def module(lookup):
    return Pretrainer(lookup(), {"squad": lambda: squad_head.Task(n_best_size=2)})


@pytest.fixture(scope="module")
def batch(token_batch):
    return token_batch(2, answer_places=MARKS, labels=LABELS)


@pytest.fixture(scope="module")
def params(module, batch):
    random = np.random.default_rng(0)
    head = {"kernel": random.normal(size=(5, 2)), "bias": random.normal(size=2)}
    arrays = {
        "encoder": {"table": random.normal(size=(11, 5))},
        "squad": {"classifier": {"dense": head}},
    }
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), batch, train=False))
    arrays = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), arrays)
    assert jax.tree.structure(arrays) == jax.tree.structure(
        jax.tree.map(lambda leaf: 0, shapes["params"], is_leaf=lambda x: hasattr(x, "value"))
    )
    return {"params": arrays}


@pytest.fixture(scope="module")
def logits(params, batch):
    """By hand, [B 2 L], minus infinity in padding."""
    table = np.asarray(params["params"]["encoder"]["table"], np.float64)
    head = params["params"]["squad"]["classifier"]["dense"]
    attention_mask = np.asarray(batch["attention_mask"])
    sequence = table[np.asarray(batch["input_ids"])] * attention_mask[..., None]
    found = (sequence @ np.asarray(head["kernel"]) + np.asarray(head["bias"])).swapaxes(1, 2)
    return np.where(attention_mask[:, None], found, -np.inf)


def test_the_loss_by_hand(module, params, batch, logits):
    losses, metrics = module.apply(params, batch, train=False)
    log_probs = np.take_along_axis(log_softmax(logits, axis=-1), LABELS[..., None], axis=-1)
    total, weight = losses["squad"]
    assert float(weight) == 2
    assert float(total) == pytest.approx(-log_probs.sum() / 2, rel=1e-5)
    right = (logits.argmax(axis=-1) == LABELS).all(axis=-1).sum()
    assert float(metrics["squad/exact_span"][0]) == right


def test_padding_windows_have_no_loss(module, params, batch):
    alone = {name: rows[:1] for name, rows in batch.items()}
    one = module.apply(params, alone, train=False)[0]["squad"]
    weights = jnp.array([1.0, 0.0])
    two = module.apply(params, batch | {"example_weight": weights}, train=False)[0]["squad"]
    np.testing.assert_allclose(two, one, rtol=1e-6)


def test_predictions_are_the_best_positions_of_the_context(module, params, batch, logits):
    found = np.asarray(module.apply(params, batch, method="predict"))
    assert found.shape == (2, 9)
    for row, marks in enumerate(MARKS):
        context = np.flatnonzero(marks == 1)
        for side in range(2):
            best = context[np.argsort(-logits[row, side, context])][:2]
            scores, places = found[row, 4 * side : 4 * side + 4].reshape(2, 2)
            assert places.tolist() == best.tolist()
            np.testing.assert_allclose(scores, logits[row, side, best], rtol=1e-5)
        assert found[row, -1] == pytest.approx(logits[row, :, 0].sum(), rel=1e-5)


def test_padding_has_no_score(module, params, batch):
    marks = jnp.asarray(np.where(MARKS == 1, 0, MARKS)).at[0, 3].set(1)
    found = np.asarray(module.apply(params, batch | {"answer_places": marks}, method="predict"))
    assert np.isfinite(found[0, [0, 4]]).all()
    assert np.isneginf(found[0, [1, 5]]).all()
    assert np.isneginf(found[1, [0, 1, 4, 5]]).all()


def test_longer_padding_has_no_effect(module, params, batch):
    longer = {
        name: jnp.pad(rows, [(0, 0), (0, 4)]) if name != "labels" else rows
        for name, rows in batch.items()
    }
    for method in ("predict", None):
        options = {"method": method} if method else {"train": False}
        short, long = (module.apply(params, rows, **options) for rows in (batch, longer))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), short, long)
