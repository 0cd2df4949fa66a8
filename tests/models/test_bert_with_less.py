"""BERT's encoder without segments or pooler, as in ELECTRA and DistilBERT."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from bertjax.models.bert import Model

B, L, D = 3, 7, 15
SMALL = {
    "vocab_size": 53,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 11,
    "max_position_embeddings": 13,
}
LESS = {"embedding_size": 6, "type_vocab_size": 0, "num_pooler_layers": 0}


def outputs_of(model, rows=B, length=L):
    """Shapes of its outputs and of its parameters."""
    batch = {
        "input_ids": jnp.zeros((rows, length), jnp.int32),
        "attention_mask": jnp.ones((rows, length), bool),
    }

    def run():
        encoded, variables = model.init_with_output(jax.random.key(0), batch, train=False)
        return (encoded.sequence, encoded.pooled), variables["params"]

    return jax.eval_shape(run)


ELECTRA_TREE = """
embeddings/norm/bias 6
embeddings/norm/scale 6
embeddings_project/bias 15
embeddings_project/kernel 6x15
position_embeddings/embedding 13x6
word_embeddings/embedding 53x6
"""


def test_segments_and_pooler_are_optional_and_embeddings_may_be_narrower():
    (sequence, pooled), shapes = outputs_of(Model(**SMALL | LESS))
    shapes = nn.meta.unbox(shapes)
    lines = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), "x".join(map(str, leaf.shape)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
        if path[0].key != "layers"
    ]
    assert sorted(lines) == [tuple(line.split()) for line in ELECTRA_TREE.strip().splitlines()]
    assert shapes["layers"] == nn.meta.unbox(outputs_of(Model(**SMALL))[1])["layers"]
    assert sequence.shape == (B, L, D)
    assert pooled is None
    assert Model(**SMALL | LESS).clone().embedding_size == 6


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"hidden_size": 256, "embedding_size": 128, "num_attention_heads": 4}, 13_483_008),
        ({}, 108_891_648),
        ({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}, 334_092_288),
        ({"num_hidden_layers": 6, "type_vocab_size": 0}, 66_362_880),
    ],
    ids=["electra-small", "electra-base", "electra-large", "distilbert"],
)
def test_published_parameter_counts_without_a_pooler(fields, count):
    width = fields.get("hidden_size", 768)
    model = Model(**fields, intermediate_size=4 * width, num_pooler_layers=0)
    _, shapes = outputs_of(model)
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == count
