"""What tests of datasets share: how a small model reads, and a run to fine-tune."""

import numpy as np
import pytest

from bertjax import config as configs
from bertjax import importing
from bertjax.data.task_reading import Reading

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "precision": "float32",
}


@pytest.fixture(scope="session")
def beginning(tmp_path_factory):
    """Makes a run with a tokenizer and weights that are draws."""

    def make(pieces):
        config = configs.load_config("configs/bert.py:tiny", [])
        with config.unlocked():
            config.model.update(SMALL, vocab_size=pieces.vocab_size)
        draws = np.random.default_rng(1)
        shapes = importing.parameter_shapes(importing.pretrainer(config, pieces))
        params = {n: draws.normal(0, 0.1, size).astype(np.float32) for n, size in shapes.items()}
        run = tmp_path_factory.mktemp("runs") / "run"
        importing.write(importing.Import(config, pieces, params, ()), run)
        return run

    return make


@pytest.fixture(scope="session")
def reading():
    """Makes a `Reading` with a tokenizer."""

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
        return Reading(**fields | changes)

    return make
