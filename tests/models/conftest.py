"""What tests of models share: variables whose every number is a draw, and what torch has."""

import pathlib
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"


@pytest.fixture(scope="session")
def random_variables():
    """Variables of a model as `init` would make them; `scale` is their deviation."""

    def draw(model, batch, scale=0.3):
        generator = np.random.default_rng(1)
        boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, train=False))
        return jax.tree.map(
            lambda leaf: jnp.asarray(generator.normal(0, scale, leaf.shape), jnp.float32),
            nn.meta.unbox(boxed),
        )

    return draw


@pytest.fixture(scope="session")
def load_into():
    """Gives a torch model our parameters: `load_into(model, params, names)`.

    `names` says what a folder of our tree is called there; `*` stands for the number of a layer.
    """

    def load(model, params, names):
        import torch

        weights = dict(model.named_parameters())
        used = set()
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            path = jax.tree_util.keystr(path, simple=True, separator="/")
            folder, _, kind = path.rpartition("/")
            theirs = names.get(path) or names.get(folder)
            if theirs is None:
                continue
            if path not in names:
                theirs += ".bias" if kind == "bias" else ".weight"
            layers = np.asarray(leaf) if "*" in theirs else np.asarray(leaf)[None]
            for index, value in enumerate(layers):
                name = re.sub(r"\*", str(index), theirs)
                shape = weights[name].shape
                if kind == "kernel":
                    # torch keeps [out in].
                    value = value.reshape(shape[::-1]).T
                with torch.no_grad():
                    weights[name].copy_(torch.tensor(value.reshape(shape).copy()))
                used.add(name)
        assert used == set(weights), set(weights) - used
        return model.eval()

    return load


@pytest.fixture
def golden_arrays(regolden):
    """Compares with arrays that a reference once gave, or keeps what it gives now."""

    def compare(name, ours, reference=None):
        path = GOLDEN / f"parity_{name}.npz"
        if regolden and reference is not None:
            np.savez_compressed(path, **{k: np.float32(v) for k, v in reference.items()})
        with np.load(path) as wanted:
            assert set(wanted) == set(ours)
            for key in wanted:
                np.testing.assert_allclose(ours[key], wanted[key], atol=1e-4, rtol=0, err_msg=key)

    return compare
