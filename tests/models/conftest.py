"""Fixtures of model tests: random variables, and parity with reference implementations."""

import pathlib
import zlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "golden"


@pytest.fixture(scope="session")
def random_variables():
    """Random variables with the shapes of `init`; `scale` is their standard deviation."""

    def draw(model, batch, scale=0.3):
        generator = np.random.default_rng(1)
        boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, train=False))
        return jax.tree.map(
            lambda leaf: jnp.asarray(generator.normal(0, scale, leaf.shape), jnp.float32),
            nn.meta.unbox(boxed),
        )

    return draw


def _draw(path, shape, magnify):
    """Random weights that depend only on their name and magnitude."""
    generator = np.random.default_rng(zlib.crc32(path.encode()))
    center = 1.0 if path.endswith("scale") else 0.0
    return np.float32(center + magnify * 0.05 * generator.normal(size=shape))


def _hf_arrays(path, value, names):
    """A parameter under the names of transformers: kernels as [out in], one array per layer."""
    module, _, leaf = path.rpartition("/")
    leaves = {"kernel": ".weight", "scale": ".weight", "bias": ".bias"}
    whole = path in names
    name = names[path] if whole else names[module] + leaves[leaf]
    layers = list(value) if "*" in name else [value]
    for index, one in enumerate(layers):
        if leaf == "kernel":
            contracted = 2 if module.endswith("attention/output") else 1
            one = one.reshape(int(np.prod(one.shape[:contracted])), -1).T
        elif not whole:
            one = one.reshape(-1)
        yield name.replace("*", str(index)), one


@pytest.fixture(scope="session")
def parity():
    """`parity(pretrainer, batch, names, magnify)`: parameters of both sides.

    `names` maps each module or parameter to its name in transformers; `*` is the index of the
    layer.
    """

    def make(pretrainer, batch, names, magnify):
        boxed = jax.eval_shape(lambda: pretrainer.init(jax.random.key(0), batch, train=False))
        params, hf_arrays = {}, {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(nn.meta.unbox(boxed)["params"]):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            value = _draw(name, leaf.shape, magnify)
            *folders, last = name.split("/")
            node = params
            for folder in folders:
                node = node.setdefault(folder, {})
            node[last] = jnp.asarray(value)
            hf_arrays.update(_hf_arrays(name, value, names))
        return {"params": params}, hf_arrays

    return make


@pytest.fixture(scope="session")
def load_into():
    """`load_into(model, params, names)`: load parameters into a torch model, with names as above.

    Parameters without a name there, such as those of another tower, are left out; every weight of
    the torch model must be set.
    """

    def load(model, params, names):
        import torch

        hf_arrays = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            path = jax.tree_util.keystr(path, simple=True, separator="/")
            if path in names or path.rpartition("/")[0] in names:
                hf_arrays.update(_hf_arrays(path, np.asarray(leaf), names))
        weights = dict(model.named_parameters())
        assert hf_arrays.keys() == weights.keys(), hf_arrays.keys() ^ weights.keys()
        for name, value in hf_arrays.items():
            with torch.no_grad():
                weights[name].copy_(torch.tensor(value.copy()))
        return model.eval()

    return load


@pytest.fixture(scope="session")
def golden_parity(regolden):
    """`golden_parity(name, outputs)`: compare with stored outputs of transformers."""

    def check(name, outputs, reference=None):
        path = FOLDER / f"parity_{name}.npz"
        if regolden and reference is not None:
            np.savez_compressed(path, **{k: np.float32(v) for k, v in reference.items()})
        with np.load(path) as golden:
            assert set(golden) == set(outputs)
            for key, value in outputs.items():
                np.testing.assert_allclose(value, golden[key], atol=1e-4, rtol=0, err_msg=key)

    return check
