"""A muP model, exported and imported again: the same logits without the multipliers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import config as configs
from bertjax.huggingface import exporting, importing
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint import trees
from bertjax.train.checkpoint.manager import Checkpoints

SHRUNK = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "precision": "float32",
    "mup_base_width": 4,
    "mup_base_heads": 1,
}
"""Queries are scaled by (2 / 1 / 4) ** 0.5, logits by 1 / 4."""


def write_run(folder, recipe):
    """Writes a run of a config with random weights; returns its config and the weights."""
    tokenizer = tokenizers.train(["a text of few words, in which all letters are"], vocab_size=60)
    config = configs.load_config(f"configs/{recipe}.py:tiny", [])
    with config.unlocked():
        config.model.update(SHRUNK, vocab_size=tokenizer.vocab_size)
    shapes = importing.parameter_shapes(importing.pretrainer(config, tokenizer))
    random = np.random.default_rng(0)
    params = {
        name: (random.normal(size=shape) / 3 + name.endswith("scale")).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }
    folder.mkdir()
    (folder / "config.json").write_text(configs.to_json(config))
    tokenizer.save(str(folder / "tokenizer"))
    with Checkpoints(folder) as checkpoints:
        checkpoints.save({"params": jax.tree.map(jnp.asarray, trees.nest(params))}, step=7)
    return config, params


def logits(pretrainer, params):
    ids = jnp.asarray(np.random.default_rng(1).integers(5, 30, (2, 9)))
    batch = {"input_ids": ids, "attention_mask": jnp.ones(ids.shape, bool)}

    def forward(module):
        encoded = module.encoder(batch, train=False)
        return module.mlm.token_logits(module.encoder, encoded)

    return jax.jit(lambda params: pretrainer.apply({"params": params}, method=forward))(params)


@pytest.mark.parametrize("recipe", ["bert_wwm", "modernbert"])
def test_the_multipliers_are_in_the_exported_weights(recipe, tmp_path):
    config, params = write_run(tmp_path / "run", recipe)
    exporting.write(exporting.find(str(tmp_path / "run")), tmp_path / "hf")
    again = importing.read(tmp_path / "hf")
    assert not again.config.model.get("mup_base_width", 0)
    with again.config.unlocked():
        again.config.model.precision = "float32"
    expected = logits(importing.pretrainer(config), trees.nest(params))
    found = logits(importing.pretrainer(again.config), trees.nest(again.params))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.std(expected) > 0.1
