"""Frozen layers, layer-wise learning rates, and fields of optimizers."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.errors import UserError
from bertjax.train import optimizer
from bertjax.train.checkpoint import trees

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS = 3
SHAPES = {
    "encoder/layers/block/attention/query/kernel": (LAYERS, 5, 2, 3),
    "encoder/layers/block/attention/query/bias": (LAYERS, 2, 3),
    "encoder/layers/block/attention_norm/scale": (LAYERS, 5),
    "encoder/word_embeddings/embedding": (11, 5),
    "mlm/transform/dense/kernel": (5, 7),
    "mlm/bias": (11,),
}


def as_tree(arrays):
    return trees.nest({name: jnp.asarray(x, jnp.float32) for name, x in arrays.items()})


def random_arrays(seed, scale=1.0):
    generator = np.random.default_rng(seed)
    return {name: generator.normal(0, scale, shape) for name, shape in SHAPES.items()}


def test_an_unknown_optimizer():
    with pytest.raises(
        UserError, match="no 'adam' in bertjax/train/optimizers/: did you mean 'adamw'"
    ):
        optimizer.make("adam")


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_parameters_with_zero_gradient_do_not_change(kind):
    start, gradient = random_arrays(0), random_arrays(1)
    frozen_parts = "mlm/transform/dense/kernel"
    gradient[frozen_parts] = np.zeros(SHAPES[frozen_parts])
    params = as_tree(start)
    transform = optimizer.make(kind, weight_decay=0.3)
    state = transform.init(params)
    for _ in range(3):
        updates, state = transform.update(as_tree(gradient), state, params)
        params = optax.apply_updates(params, jax.tree.map(lambda x: -0.1 * x, updates))
    after = trees.flatten_names(params)
    np.testing.assert_array_equal(after.pop(frozen_parts), np.float32(start[frozen_parts]))
    assert all(np.all(value != start[name]) for name, value in after.items())


def test_lower_layers_have_smaller_learning_rates():
    """Clark et al. 2020: 0.8 to the power of the number of layers above the parameters."""
    params = as_tree(random_arrays(0))
    params["encoder"]["pooler"] = {"dense": {"kernel": jnp.ones((5, 5))}}
    params["encoder"]["layers"]["depth_weights"] = jnp.ones(2 + 3 + 4 + 5 + 6 + 7)
    gradients = jax.tree.map(jnp.ones_like, params)
    plain, deep = (
        optimizer.make("adamw", weight_decay=0.1, **more)
        for more in ({}, {"layerwise_decay": 0.8, "num_layers": LAYERS})
    )
    expected, got = (
        trees.flatten_names(o.update(gradients, o.init(params), params)[0]) for o in (plain, deep)
    )
    for name, update in expected.items():
        factor = 1.0
        if name.endswith("depth_weights"):  # two sums before each layer
            factor = np.repeat([0.8**4, 0.8**3, 0.8**2], [2 + 3, 4 + 5, 6 + 7])
        elif name.startswith("encoder/layers"):
            factor = np.array([0.8**4, 0.8**3, 0.8**2]).reshape(-1, *(1,) * (update.ndim - 1))
        elif name.startswith("encoder/word"):
            factor = 0.8**5
        np.testing.assert_allclose(got[name], update * factor, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("has_first_layer", [False, True])
def test_frozen_layers_stay_as_they_are(has_first_layer):
    """Weight decay included; with a layer below the stack, that is the first one."""
    params = as_tree(random_arrays(0))
    params["encoder"] |= {"pooler": {"kernel": jnp.ones(5)}, "norm": {"scale": jnp.ones(5)}}
    if has_first_layer:
        params["encoder"]["first_layer"] = {"kernel": jnp.ones((5, 5))}
    number = LAYERS + has_first_layer
    trained = optimizer.make("adamw", weight_decay=0.1, frozen_layers=2, num_layers=number)
    gradients = jax.tree.map(jnp.ones_like, params)
    for name, update in trees.flatten_names(
        trained.update(gradients, trained.init(params), params)[0]
    ).items():
        changed = np.any(np.asarray(update).reshape(len(update), -1) != 0, axis=1)
        if name.startswith("encoder/layers"):
            np.testing.assert_array_equal(changed, np.arange(LAYERS) >= 2 - has_first_layer)
        else:
            is_frozen = name.startswith(("encoder/word", "encoder/first_layer"))
            assert changed.any() != is_frozen, name
    with pytest.raises(UserError, match="frozen_layers: got 4, expected at most 3"):
        optimizer.make("adamw", frozen_layers=4, num_layers=3)


@pytest.mark.parametrize("norm", [0.0, 0.5, 4.0])
def test_clipping_agrees_with_optax(norm):
    gradient = {"a": jnp.array([0.6 * norm, 0.0]), "b": jnp.array([[-0.8 * norm]])}
    (found, _), (expected, _) = (
        make(2.0).update(gradient, make(2.0).init(gradient), gradient)
        for make in (optimizer.clip_by_global_norm, optax.clip_by_global_norm)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_clipping_ignores_the_gradients_of_frozen_layers():
    """As in PyTorch, where they have none."""
    params = as_tree(random_arrays(0))
    trained = optimizer.make("lion", frozen_layers=LAYERS, num_layers=LAYERS)
    gradients = jax.tree.map(lambda leaf: 1e-3 * jnp.ones_like(leaf), params)
    large = gradients | {"encoder": jax.tree.map(lambda leaf: 1e3 * leaf, gradients["encoder"])}

    def momentum(gradients):
        _, state = trained.update(gradients, trained.init(params), params)
        return {n: a for n, a in trees.flatten_names(state).items() if "encoder" not in n}

    expected, found = momentum(gradients), momentum(large)
    assert found
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize(
    ("decay", "layers", "message"),
    [
        (0.0, LAYERS, "layerwise_decay: got 0.0, expected more than 0 and at most 1"),
        (0.8, LAYERS + 1, "expected one stack of 4 layers with separate parameters"),
    ],
)
def test_an_impossible_layerwise_decay_is_one_line(decay, layers, message):
    with pytest.raises(UserError, match=message):
        optimizer.make("adamw", layerwise_decay=decay, num_layers=layers).init(
            as_tree(random_arrays(0))
        )


SGD = '''
"""Momentum SGD, for a test."""

import dataclasses

import optax

from bertjax.constraints import ShareBelowOne


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """SGD with momentum."""

    momentum: ShareBelowOne = 0.9

    def transforms(self):
        return (optax.trace(self.momentum),)
'''
FLAT = '''
"""A share of the peak, for a test."""

import dataclasses

import optax

from bertjax.constraints import PositiveShare


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A constant share of the peak."""

    floor: PositiveShare = 0.5

    def decay(self, peak, steps, warmup_steps):
        return optax.constant_schedule(self.floor * peak)
'''
PROGRAM = """
import json, sys
from bertjax import build, config
from bertjax.errors import UserError

def describe(spec, words):
    try:
        made = config.load_config(spec, config.split_overrides(words)[1])
        build.check(made)
    except UserError as error:
        return str(error)
    state = build.make_optimizer(made).init({"kernel": 0.0})
    rate = float(build.make_schedule(made)(20_000))
    return type(state[1]).__name__, made.optimizer.momentum, made.optimizer.floor, rate

spec, cases = sys.argv[1:]
print(json.dumps([describe(spec, words) for words in json.loads(cases)]))
"""
SET = ("momentum=0.7", "name=sgd", "schedule=flat", "floor=0.25")
REFUSED = {
    ("name=sgd", "momentun=0.7"): "no field 'momentun' in config.optimizer: did you mean 'm",
    ("name=sgd", "momentum=1"): "config.optimizer.momentum: got 1.0, expected a share in [0",
    ("momentum=0.7",): "momentum has no effect: got 0.7 with config.optimizer.name='adamw'",
    ("name=sgd", "adam_b1=0.7"): "expected 'adamw' or 'lamb' or 'muon' or",
    ("floor=0.7",): "no effect: got 0.7 with config.optimizer.schedule='linear', expected 'f",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the package with a new optimizer and schedule, and no other change."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "bertjax", folder / "bertjax")
    (folder / "bertjax/train/optimizers/sgd.py").write_text(SGD)
    (folder / "bertjax/train/schedules/flat.py").write_text(FLAT)
    return folder


@pytest.fixture(scope="module")
def described(checkout) -> dict[tuple[str, ...], str | list]:
    """The result of the copy for each set of overrides: an optimizer and schedule, or an error."""
    cases = [SET, *REFUSED]
    words = [[f"--config.optimizer.{field}" for field in case] for case in cases]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"{ROOT}/configs/bert.py:tiny", json.dumps(words)],
        env=os.environ | {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"},
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout), strict=True))


def test_a_new_file_is_a_new_optimizer_with_its_own_fields(described):
    assert described[SET] == ["TraceState", 0.7, 0.25, pytest.approx(2.5e-5)]


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_fields_of_a_new_optimizer_are_checked(described, overrides):
    assert REFUSED[overrides] in described[overrides]
