"""Batches and truncation in prediction, without a model."""

import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from bertjax.inference.predict import Predictor
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.sharding import make_mesh

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]


def count(params, batch):
    """A stub of a model: the score of two texts is their number of tokens."""
    return jnp.sum(batch["attention_mask"], axis=1, keepdims=True).astype(jnp.float32)


@pytest.fixture
def scores(tmp_path):
    """Scores of pairs of texts, for maximum lengths of the recipe and the model."""
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, ""]))
    tokenizer = tokenizers.load(tmp_path / "vocab.txt")
    mesh = make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "sequence": 1})

    def predict(lines, data, positions):
        model = {"name": "bert", "max_position_embeddings": positions}
        config = {"task": {"name": "glue", "dataset": "stsb"}, "model": model, "data": data}
        predictor = Predictor(ConfigDict(config), tokenizer, "", {}, count, mesh)
        answers = predictor.predict([("line 1", "\t".join(line)) for line in lines], 3)
        return [(answer["score"], "truncated" in answer) for answer in answers]

    return predict


@pytest.mark.parametrize(
    ("data", "positions", "max_length"),
    [
        ({"max_seq_length": 17}, 40, 17),
        ({"max_seq_length": 40}, 19, 19),
        ({"max_seq_length": 601}, 700, 601),
        ({}, 23, 23),
        ({}, 700, 512),
    ],
    ids=["recipe", "model", "long recipe", "no recipe", "no recipe, long model"],
)
def test_texts_are_truncated_to_the_limit_of_the_recipe_or_the_model(
    scores, data, positions, max_length
):
    lines = [(" ".join(LETTERS * 14), " ".join(LETTERS * 14)), ("a b", "c d e")]
    assert scores(lines, data, positions) == [(max_length, True), (8, False)]
