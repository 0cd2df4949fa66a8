"""Fixtures of task tests: an encoder with known outputs, a small run, datasets of tables."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import catalog
from bertjax import config as configs
from bertjax.huggingface import importing
from bertjax.pretrainer import Encoded
from bertjax.tasks.dataset import EncodingSpec
from bertjax.tokenizers import tokenizer as tokenizers


class Lookup(nn.Module):
    """An encoder whose output is a table of vectors."""

    pooler: bool = True
    initializer_range: float = 0.02

    vocab_size = 11
    hidden_size = embedding_size = 5
    hidden_act = "gelu"
    layer_norm_eps = 1e-12
    precision = "float32"

    @nn.compact
    def __call__(self, batch, *, train):
        table = self.param("table", nn.initializers.normal(1.0), (11, 5))
        sequence = table[batch["input_ids"]] * batch["attention_mask"][..., None]
        return Encoded(sequence, sequence[:, 0] if self.pooler else None)

    def attend(self, hidden):
        raise AssertionError("the head of a task has no vocabulary")


@pytest.fixture(scope="session")
def lookup():
    """Create an encoder whose output is a table of vectors."""
    return Lookup


@pytest.fixture(scope="session")
def token_batch():
    """Rows of 7 random tokens; the last two of every second row are padding."""

    def make(size, **more):
        generator = np.random.default_rng(3)
        attention_mask = np.arange(7) < np.where(np.arange(size) % 2, 5, 7)[:, None]
        ids = generator.integers(0, 11, (size, 7))
        batch = {"input_ids": ids, "attention_mask": attention_mask}
        return {name: jnp.asarray(rows) for name, rows in (batch | more).items()}

    return make


SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "precision": "float32",
}


@pytest.fixture(scope="session")
def random_run(tmp_path_factory):
    """Create a run with a tokenizer and random weights."""

    def make(tokenizer):
        config = configs.load_config("configs/bert.py:tiny", [])
        with config.unlocked():
            config.model.update(SMALL, vocab_size=tokenizer.vocab_size)
        random = np.random.default_rng(1)
        shapes = importing.parameter_shapes(importing.pretrainer(config, tokenizer))
        params = {n: random.normal(0, 0.1, size).astype(np.float32) for n, size in shapes.items()}
        run = tmp_path_factory.mktemp("runs") / "run"
        importing.write(importing.Import(config, tokenizer, params, ()), run)
        return run

    return make


@pytest.fixture(scope="session")
def encoding_spec():
    """Makes an `EncodingSpec` with a tokenizer."""

    def make(tokenizer, **changes):
        fields = {
            "tokenizer": tokenizer,
            "max_seq_length": 12,
            "cls_last": False,
            "max_chars_per_word": 0,
            "takes_positions": True,
            "batch_size": 2,
            "eval_batch_size": 3,
            "padded_lengths": (8, 16),
            "batches_per_group": 1,
            "max_train_examples": 0,
            "seed": 0,
        }
        return EncodingSpec(**fields | changes)

    return make


@pytest.fixture
def read_dataset(tmp_path, encoding_spec):
    """Reads a folder as a kind of task: `read_dataset("tags", field=value)`."""
    tokenizer = tokenizers.train(["the name of x a y z"] * 4, vocab_size=40)

    def read(kind, **fields):
        config = configs.load_config(
            f"task:{kind},tiny", {f"data.{k}": v for k, v in fields.items()}
        )
        spec = encoding_spec(tokenizer, max_seq_length=32, padded_lengths=())
        return catalog.load("tasks", kind, "dataset").Dataset(
            str(tmp_path), config.task, config.data, spec
        )

    return read
