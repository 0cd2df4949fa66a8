"""AdamW and LAMB against numpy in float64, over several steps, and LAMB's trust ratio."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.train import optimizer
from bertjax.train.checkpoint import trees
from bertjax.train.optimizers import lamb

LAYERS = 3
SHAPES = {
    "encoder/layers/block/attention/query/kernel": (LAYERS, 5, 2, 3),
    "encoder/layers/block/attention/query/bias": (LAYERS, 2, 3),
    "encoder/layers/block/attention/content_bias": (LAYERS, 2, 3),
    "encoder/layers/block/attention_norm/scale": (LAYERS, 5),
    "encoder/word_embeddings/embedding": (11, 5),
    "mlm/transform/dense/kernel": (5, 7),
    "mlm/bias": (11,),
}
DECAYS = {name: name.endswith(("kernel", "embedding")) for name in SHAPES}
STACKED = {name: "layers/block" in name for name in SHAPES}


def random_arrays(seed, scale=1.0):
    generator = np.random.default_rng(seed)
    return {name: generator.normal(0, scale, shape) for name, shape in SHAPES.items()}


def as_tree(arrays):
    return trees.nest({name: jnp.asarray(x, jnp.float32) for name, x in arrays.items()})


def norm(x, name):
    """One norm per layer: over all axes except that of layers."""
    if not STACKED[name]:
        return np.sqrt((x**2).sum())
    return np.sqrt((x**2).sum(axis=tuple(range(1, x.ndim)), keepdims=True))


def by_hand(kind, params, gradients, *, rate, b1, b2, eps, decay, clip):
    """Adam with bias correction, decoupled weight decay, and LAMB's trust ratio."""
    first = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    second = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    params = dict(params)
    for step, gradient in enumerate(gradients, start=1):
        length = np.sqrt(sum((value**2).sum() for value in gradient.values()))
        shrink = min(1.0, clip / length) if clip else 1.0
        for name, value in gradient.items():
            value = shrink * value
            first[name] = b1 * first[name] + (1 - b1) * value
            second[name] = b2 * second[name] + (1 - b2) * value**2
            update = first[name] / (1 - b1**step)
            update = update / (np.sqrt(second[name] / (1 - b2**step)) + eps)
            if DECAYS[name]:
                update = update + decay * params[name]
                if kind == "lamb":
                    update = update * norm(params[name], name) / norm(update, name)
            params[name] = params[name] - rate * update
    return params


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_several_steps_equal_the_formula(kind, clip):
    fields = {"b1": 0.8, "b2": 0.95, "eps": 1e-3, "decay": 0.3}
    start, gradients = random_arrays(0), [random_arrays(seed, 10.0**-seed) for seed in range(1, 6)]
    transform = optimizer.make(
        kind,
        weight_decay=fields["decay"],
        adam_b1=fields["b1"],
        adam_b2=fields["b2"],
        adam_eps=fields["eps"],
        max_grad_norm=clip,
    )
    params = as_tree(start)
    state = transform.init(params)

    @jax.jit
    def step(params, state, gradient):
        updates, state = transform.update(gradient, state, params)
        return jax.tree.map(lambda param, update: param - 0.05 * update, params, updates), state

    for gradient in gradients:
        params, state = step(params, state, as_tree(gradient))
    expected = by_hand(kind, start, gradients, rate=0.05, clip=clip, **fields)
    for name, value in trees.flatten_names(params).items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_the_defaults_are_those_of_bert():
    """Weight decay 0.01, betas 0.9 and 0.999, epsilon 1e-6, gradients clipped at 1."""
    named = optimizer.make("adamw")
    printed = optimizer.make(
        "adamw", weight_decay=0.01, adam_b1=0.9, adam_b2=0.999, adam_eps=1e-6, max_grad_norm=1.0
    )
    params, gradient = as_tree(random_arrays(0)), as_tree(random_arrays(1))
    got, expected = (
        jax.jit(transform.update)(gradient, transform.init(params), params)[0]
        for transform in (named, printed)
    )
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_a_scanned_stack_is_like_separate_layers():
    """LAMB's trust ratio of a layer does not depend on stacking."""
    generator = np.random.default_rng(0)
    scales = np.array([0.1, 1.0, 30.0])[:, None, None]
    stacked = jnp.asarray(scales * generator.normal(size=(LAYERS, 5, 7)), jnp.float32)
    update = jnp.asarray(generator.normal(size=(LAYERS, 5, 7)), jnp.float32)
    ratio = lamb.scale_by_trust_ratio()

    def scaled(update, params):
        return trees.flatten_names(ratio.update(update, ratio.init(params), params)[0])

    together = scaled(
        {"layers": {"block": {"kernel": update}}}, {"layers": {"block": {"kernel": stacked}}}
    )["layers/block/kernel"]
    # Groups of layers have two leading axes: here three groups of one block.
    groups = scaled(
        {"layers": {"group": {"kernel": update[:, None]}}},
        {"layers": {"group": {"kernel": stacked[:, None]}}},
    )["layers/group/kernel"]
    np.testing.assert_array_equal(groups[:, 0], together)
    for index in range(LAYERS):
        alone = scaled({"kernel": update[index]}, {"kernel": stacked[index]})["kernel"]
        np.testing.assert_allclose(together[index], alone, rtol=1e-6)
        assert np.linalg.norm(alone) == pytest.approx(np.linalg.norm(stacked[index]), rel=1e-5)


def test_the_trust_ratio_of_a_zero_norm_is_one():
    ratio = lamb.scale_by_trust_ratio()
    update = {"kernel": jnp.array([[3.0, 4.0]]), "other": jnp.zeros((2, 2))}
    params = {"kernel": jnp.zeros((1, 2)), "other": jnp.ones((2, 2))}
    got, _ = ratio.update(update, ratio.init(params), params)
    np.testing.assert_array_equal(got["kernel"], [[3.0, 4.0]])
    np.testing.assert_array_equal(got["other"], np.zeros((2, 2)))
