"""Lion, StableAdamW, Adafactor and Muon against numpy in float64, over several steps."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from bertjax import build, catalog
from bertjax.config import load_config
from bertjax.profiling import dummy
from bertjax.train import matrices, optimizer, sharding
from bertjax.train.checkpoint import trees
from bertjax.train.optimizers import muon

N, D, H, K, F, V = 3, 5, 2, 3, 7, 11
RATE, DECAY = 0.05, 0.3
SHAPES = {
    "encoder/layers/block/attention/query/kernel": (N, D, H, K),
    "encoder/layers/block/attention/output/kernel": (N, H, K, D),
    "encoder/layers/block/feed_forward/output/kernel": (N, F, D),
    "encoder/layers/block/attention/query/bias": (N, H, K),
    "encoder/layers/block/attention_norm/scale": (N, D),
    "encoder/word_embeddings/embedding": (V, D),
    "encoder/pooler/dense/kernel": (D, D),
    "mlm/transform/dense/kernel": (D, F),
    "mlm/bias": (V,),
}
MATRICES = {
    "encoder/layers/block/attention/query/kernel": (D, H * K),
    "encoder/layers/block/attention/output/kernel": (H * K, D),
    "encoder/layers/block/feed_forward/output/kernel": (F, D),
    "encoder/word_embeddings/embedding": (V, D),
    "encoder/pooler/dense/kernel": (D, D),
    "mlm/transform/dense/kernel": (D, F),
}
"""The matrix of a layer, by hand."""
BY_MUON = [name for name in MATRICES if name.startswith("encoder") and name.endswith("kernel")]
UNUSED = "encoder/pooler/dense/kernel"
"""It has no gradient in all steps."""


def random_arrays(seed, scale=1.0):
    generator = np.random.default_rng(seed)
    return {name: generator.normal(0, scale, shape) for name, shape in SHAPES.items()}


def as_tree(arrays):
    return trees.nest({name: jnp.asarray(x, jnp.float32) for name, x in arrays.items()})


def layers(name, array):
    """The arrays of each layer, kernels as matrices."""
    parts = array if "layers/" in name else [array]
    return [part.reshape(MATRICES.get(name, part.shape)) for part in parts]


def rms(array):
    return np.sqrt(np.mean(array**2))


def adam(state, gradient, step, b1=0.8, b2=0.95, eps=1e-3):
    state["m"] = b1 * state.get("m", 0) + (1 - b1) * gradient
    state["v"] = b2 * state.get("v", 0) + (1 - b2) * gradient**2
    first, second = state["m"] / (1 - b1**step), state["v"] / (1 - b2**step)
    return first / (np.sqrt(second) + eps), second


def lion_by_hand(name, state, gradient, parameter, decay, step):
    momentum = state.get("m", 0)
    direction = np.sign(0.7 * momentum + 0.3 * gradient)
    state["m"] = 0.9 * momentum + 0.1 * gradient
    return direction + decay * parameter


def stable_adamw_by_hand(name, state, gradient, parameter, decay, step):
    direction, second = adam(state, gradient, step)
    ratio = rms(gradient / np.sqrt(np.maximum(second, 1e-6)))
    return (direction + decay * parameter) / max(1.0, ratio)


def adafactor_by_hand(name, state, gradient, parameter, decay, step):
    beta = 1 - step**-0.8
    square = gradient**2 + 1e-30
    if name in MATRICES and min(MATRICES[name]) >= 6:
        state["r"] = beta * state.get("r", 0) + (1 - beta) * square.sum(axis=1)
        state["c"] = beta * state.get("c", 0) + (1 - beta) * square.sum(axis=0)
        second = np.outer(state["r"], state["c"]) / state["r"].sum()
    else:
        second = state["v"] = beta * state.get("v", 0) + (1 - beta) * square
    update = gradient / np.sqrt(second)
    update = update / max(1.0, rms(update) / 0.5)
    return max(1e-3, rms(parameter)) * update + decay * parameter


def muon_by_hand(name, state, gradient, parameter, decay, step):
    if name not in BY_MUON:
        return adam(state, gradient, step)[0] + decay * parameter
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
    x = 0.9 * state["m"] + 0.1 * gradient
    x = x / (np.linalg.norm(x) + 1e-7)
    # The polynomial acts on the singular values alone.
    left, values, right = np.linalg.svd(x, full_matrices=False)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return 0.2 * max(x.shape) ** 0.5 * (left * values) @ right + decay * parameter


ADAM = {"adam_b1": 0.8, "adam_b2": 0.95, "adam_eps": 1e-3}
CASES = {
    "lion": (lion_by_hand, {"lion_b1": 0.7, "lion_b2": 0.9}),
    "stable_adamw": (stable_adamw_by_hand, ADAM),
    "adafactor": (adafactor_by_hand, {"clipping_threshold": 0.5, "min_size_to_factor": 6}),
    "muon": (muon_by_hand, {**ADAM, "muon_momentum": 0.9}),
}


@pytest.mark.parametrize("kind", CASES)
def test_several_steps_equal_the_formula(kind):
    by_hand, fields = CASES[kind]
    # The last gradient is much larger, so that updates are clipped.
    start, gradients = (
        random_arrays(0),
        [random_arrays(1, 0.1), random_arrays(2, 0.1), random_arrays(3, 1.0)],
    )
    for gradient in gradients:
        gradient[UNUSED] = np.zeros(SHAPES[UNUSED])
    transform = optimizer.make(kind, weight_decay=DECAY, max_grad_norm=0.0, **fields)
    params = as_tree(start)
    state = transform.init(params)

    @jax.jit
    def step(params, state, gradient):
        updates, state = transform.update(gradient, state, params)
        return jax.tree.map(lambda param, update: param - RATE * update, params, updates), state

    for gradient in gradients:
        params, state = step(params, state, as_tree(gradient))
    for name, found in trees.flatten_names(params).items():
        decay = DECAY * (name.endswith(("kernel", "embedding")) and name != UNUSED)
        parts = []
        for layer, part in enumerate(layers(name, start[name])):
            memory = {}
            for number, gradient in enumerate(gradients, start=1):
                own = layers(name, gradient[name])[layer]
                part = part - RATE * by_hand(name, memory, own, part, decay, number)
            parts.append(part)
        expected = np.stack(parts).reshape(SHAPES[name])
        np.testing.assert_allclose(found, expected, rtol=3e-4, atol=3e-5, err_msg=name)


def test_sophia_divides_the_momentum_by_the_average_hessian_and_clips():
    """The Hessian of the loss is diagonal, so that the estimate is exact."""
    b1, b2, gamma, interval = 0.8, 0.7, 0.5, 2
    curvature = random_arrays(4)  # of both signs
    tree = as_tree(curvature)

    def loss(params):
        terms = jax.tree.map(lambda c, x: jnp.sum(c * x**2) / 2, tree, params)
        return sum(jax.tree.leaves(terms))

    fields = {"sophia_b1": b1, "sophia_b2": b2, "sophia_gamma": gamma}
    transform = optimizer.make(
        "sophia", weight_decay=DECAY, max_grad_norm=0.0, sophia_interval=interval, **fields
    )
    start, gradients = random_arrays(0), [random_arrays(seed, 0.3) for seed in range(5, 10)]
    params = as_tree(start)
    state = transform.init(params)

    @jax.jit
    def step(params, state, gradient):
        updates, state = transform.update(gradient, state, params, obj_fn=loss)
        return jax.tree.map(lambda param, update: param - RATE * update, params, updates), state

    for gradient in gradients:
        params, state = step(params, state, as_tree(gradient))
    for name, found in trees.flatten_names(params).items():
        expected, momentum, hessian = start[name], 0.0, 0.0
        clipped = 0
        for number, gradient in enumerate(gradients, start=1):
            momentum = b1 * momentum + (1 - b1) * gradient[name]
            ratio = momentum / (1 - b1**number) / np.maximum(gamma * hessian, 1e-12)
            clipped += np.abs(ratio) > 1
            decay = DECAY * name.endswith(("kernel", "embedding"))
            expected = expected - RATE * (np.clip(ratio, -1, 1) + decay * expected)
            if (number - 1) % interval == 0:
                hessian = b2 * hessian + (1 - b2) * curvature[name]
        assert len(np.unique(clipped)) > 1, "all or no elements were clipped"
        np.testing.assert_allclose(found, expected, rtol=3e-4, atol=3e-5, err_msg=name)


def test_attention_kernels_are_matrices_of_all_heads():
    def of(path, shape):
        keys = tuple(jax.tree_util.DictKey(name) for name in path.split("/"))
        return matrices.matrix_of(keys, shape)

    assert of("encoder/layers/block/attention/query/kernel", (N, D, H, K)).sizes == (D, H * K)
    assert of("encoder/layers/block/attention/output/kernel", (N, H, K, D)).sizes == (H * K, D)
    assert of("encoder/layers/shared/attention/value/kernel", (D, H, K)).sizes == (D, H * K)
    assert of("encoder/layers/group/feed_forward/output/kernel", (4, N, F, D)).sizes == (F, D)
    assert of("encoder/layers/block/attention_norm/scale", (N, D)) is None
    assert of("encoder/forward_0/input/kernel", (D, 4, F)).sizes == (D, 4 * F)  # gates of an LSTM
    assert of("encoder/forward_0/recurrent", (D, 4, F)).sizes == (D, 4 * F)


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ("gpt_bert:tiny", {}),
        ("deberta:tiny", {"model.share_att_key": False}),
        ("xlnet:tiny", {}),
        ("transformer:tiny", {}),
    ],
)
def test_matrices_of_heads_have_the_inputs_of_their_logical_axes(spec, fields):
    config = load_config(spec, fields)
    encoder, phase = build.encoder(config.model), build.phases(config)[-1]
    rows = dummy.random_batch(config, phase)
    batch = {name: jnp.asarray(values[:1]) for name, values in rows.items()}
    made = jax.eval_shape(lambda: encoder.init(jax.random.key(0), batch, train=False)["params"])
    boxed = jax.tree_util.tree_leaves_with_path(
        {"encoder": made}, is_leaf=lambda leaf: isinstance(leaf, nn.Partitioned)
    )
    found = {}
    for path, leaf in boxed:
        names = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        axes = [axis for axis in leaf.names if axis != "layers"]
        if names[-1] == "kernel" and "heads" in axes:
            of = matrices.matrix_of(path[: len(names)], leaf.value.shape)
            found["/".join(names)] = axes[: of.inputs], axes[of.inputs :]
    heads = ["heads", "kv"]
    assert len(found) >= 4
    for name, sides in found.items():
        assert sides in ((["embed"], heads), (heads, ["embed"])), name


def test_newton_schulz_keeps_singular_vectors_and_brings_all_values_near_one():
    generator = np.random.default_rng(0)
    matrix = jnp.asarray(generator.normal(size=(2, 9, 4)), jnp.float32)
    found = muon.orthogonalise(matrix, 5)
    for one, other in zip(np.asarray(matrix, np.float64), np.asarray(found), strict=True):
        left, _, right = np.linalg.svd(one, full_matrices=False)
        inner = left.T @ other @ right.T
        np.testing.assert_allclose(inner, np.diag(np.diag(inner)), atol=1e-4)
        assert np.all((np.diag(inner) > 0.6) & (np.diag(inner) < 1.3))


def test_adafactor_is_that_of_optax_for_a_matrix():
    """Where a parameter is one matrix, optax factors the same axes."""
    shape = (6, 8)
    generator = np.random.default_rng(0)
    params = {"kernel": jnp.asarray(generator.normal(size=shape), jnp.float32)}
    optax_adafactor = optax.adafactor(
        min_dim_size_to_factor=4, weight_decay_rate=0.1, weight_decay_mask={"kernel": True}
    )
    adafactor = optimizer.make(
        "adafactor", min_size_to_factor=4, weight_decay=0.1, max_grad_norm=0.0
    )
    states = adafactor.init(params), optax_adafactor.init(params)
    for _ in range(3):
        gradient = {"kernel": jnp.asarray(generator.normal(size=shape), jnp.float32)}
        own, own_state = adafactor.update(gradient, states[0], params)
        expected, state = optax_adafactor.update(gradient, states[1], params)
        states = own_state, state
        np.testing.assert_allclose(own["kernel"], -expected["kernel"], rtol=1e-5)


def test_a_factored_moment_has_the_size_of_a_row_and_a_column():
    params = {"encoder": {"layers": {"block": {"query": {"kernel": jnp.ones((N, 8, 2, 4))}}}}}
    state = optimizer.make("adafactor", min_size_to_factor=8).init(params)
    sizes = [leaf.shape for leaf in jax.tree.leaves(state) if leaf.size > 1]
    assert sorted(sizes) == [(N, 2, 4), (N, 8)]


def test_rows_and_columns_are_sharded_as_the_axes_that_they_keep():
    kernel = jnp.zeros((2, 16, 4, 8))
    boxed = nn.LogicallyPartitioned(kernel, ("layers", "embed", "heads", "kv"))
    params = {"encoder": {"layers": {"block": {"query": {"kernel": boxed}}}}}
    state = optimizer.make("adafactor", min_size_to_factor=4).init(params)
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1})
    specs = [
        placed.spec for placed in jax.tree.leaves(sharding.shardings(state, mesh, sharding.RULES))
    ]
    count, columns, rows = specs
    assert count == PartitionSpec()
    assert columns == PartitionSpec(None, "tensor", None)
    assert rows == PartitionSpec(None, "fsdp")


@pytest.mark.parametrize("kind", catalog.names(optimizer.FOLDER))
def test_frozen_parts_have_neither_updates_nor_state(kind):
    params, gradient = as_tree(random_arrays(0)), as_tree(random_arrays(1))
    transform = optimizer.make(kind, frozen_parts=("encoder",))
    state = transform.init(params)
    assert not any("encoder" in name for name in trees.flatten_names(state))
    updates, _ = transform.update(gradient, state, params, obj_fn=optax.tree.norm)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(updates["encoder"]))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(updates["mlm"]))
