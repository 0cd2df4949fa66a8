"""ALBERT's encoder: sizes, parameter sharing, names, arithmetic, padding (invariant 7)."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers.attention import SelfAttention
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.masks import from_batch
from bertjax.layers.stack import SharedStack
from bertjax.models.albert import SHARING, Model

B, L, V, E, D, N, H, F = 3, 7, 53, 5, 15, 2, 3, 11
SMALL = {
    "vocab_size": V,
    "embedding_size": E,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": 13,
    "layer_norm_eps": 1e-5,
}
LENGTHS = np.array([7, 4, 5])


def small(**fields):
    return Model(**(SMALL | fields))


@pytest.fixture(scope="module")
def batch():
    generator = np.random.default_rng(0)
    return {
        "input_ids": jnp.asarray(generator.integers(0, V, (B, L))),
        "segment_ids": jnp.asarray(generator.integers(0, 2, (B, L))),
        "attention_mask": jnp.asarray(np.arange(L) < LENGTHS[:, None]),
    }


@pytest.fixture(scope="module")
def variables(batch, random_variables):
    return random_variables(small(), batch)


@functools.partial(jax.jit, static_argnums=0)
def run(model, variables, batch):
    return model.apply(variables, batch, train=False)


def shapes_of(model, length=8):
    batch = {
        "input_ids": jnp.zeros((1, length), jnp.int32),
        "attention_mask": jnp.ones((1, length), bool),
    }
    return jax.eval_shape(lambda: model.init(jax.random.key(0), batch, train=False))["params"]


def count(model):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes_of(model)))


@pytest.mark.parametrize(
    ("layers", "width", "heads", "expected"),
    [
        (12, 768, 12, 11_683_584),
        (24, 1024, 16, 17_683_968),
        (24, 2048, 16, 58_724_864),
        (12, 4096, 64, 222_595_584),
    ],
)
def test_published_parameter_counts(layers, width, heads, expected):
    model = Model(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    assert count(model) == expected


def test_the_defaults_are_base():
    assert shapes_of(Model()) == shapes_of(
        Model(30000, 128, 768, 12, 12, 3072, max_position_embeddings=512, type_vocab_size=2)
    )


# Tables 3 and 4 of the paper, in millions. It rounds up and down, once without the pooler.
TABLE = {
    (768, "all"): 31,
    (768, "attention"): 83,
    (768, "feed_forward"): 57,
    (768, "none"): 108,
    (256, "all"): 16,
    (256, "none"): 93,
    (128, "all"): 12,
    (128, "attention"): 64,
    (128, "feed_forward"): 38,
    (128, "none"): 89,
    (64, "all"): 10,
    (64, "none"): 87,
}


@pytest.mark.parametrize(("width", "sharing"), TABLE)
def test_the_papers_table_of_embedding_size_and_sharing(width, sharing):
    attention, feed_forward = 4 * (768 * 768 + 768) + 2 * 768, 2 * 768 * 3072 + 3072 + 3 * 768
    expected = (30000 + 512 + 2 + 2) * width + (width < 768) * (width * 768 + 768)
    expected += attention * (1 if sharing in ("all", "attention") else 12)
    expected += feed_forward * (1 if sharing in ("all", "feed_forward") else 12)
    expected += 768 * 768 + 768
    got = count(Model(embedding_size=width, sharing=sharing))
    assert got == expected
    assert abs(got / 1e6 - TABLE[width, sharing]) < 1.1


TREE = """
embedding_projection/bias                       15        embed
embedding_projection/kernel                     5x15      - embed
embeddings/norm/bias                            5         norm
embeddings/norm/scale                           5         norm
layers/block/feed_forward/intermediate/bias     2x11      layers mlp
layers/block/feed_forward/intermediate/kernel   2x15x11   layers embed mlp
layers/block/feed_forward/output/bias           2x15      layers embed
layers/block/feed_forward/output/kernel         2x11x15   layers mlp embed
layers/block/feed_forward_norm/bias             2x15      layers norm
layers/block/feed_forward_norm/scale            2x15      layers norm
layers/shared/attention/key/bias                3x5       heads kv
layers/shared/attention/key/kernel              15x3x5    embed heads kv
layers/shared/attention/output/bias             15        embed
layers/shared/attention/output/kernel           3x5x15    heads kv embed
layers/shared/attention/query/bias              3x5       heads kv
layers/shared/attention/query/kernel            15x3x5    embed heads kv
layers/shared/attention/value/bias              3x5       heads kv
layers/shared/attention/value/kernel            15x3x5    embed heads kv
layers/shared/attention_norm/bias               15        norm
layers/shared/attention_norm/scale              15        norm
pooler/dense/bias                               15        -
pooler/dense/kernel                             15x15     embed -
position_embeddings/embedding                   13x5      - -
segment_embeddings/embedding                    2x5       - -
word_embeddings/embedding                       53x5      vocab -
"""


def test_names_shapes_and_axes_of_parameters():
    """Checkpoints, sharding, LAMB and the exchange with transformers depend on these names."""
    lines = []
    for path, box in jax.tree_util.tree_leaves_with_path(
        shapes_of(small(sharing="attention")),
        is_leaf=lambda node: isinstance(node, nn.LogicallyPartitioned),
    ):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        shape = "x".join(map(str, box.value.shape))
        lines.append((name, shape, *(axis or "-" for axis in box.names)))
    assert sorted(lines) == [tuple(line.split()) for line in TREE.strip().splitlines()]


def test_groups_come_before_the_blocks_of_a_group_in_the_shapes_of_parameters():
    model = small(num_hidden_layers=5, num_hidden_groups=2, inner_group_num=3)
    layers = nn.meta.unbox(shapes_of(model))["layers"]
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(layers)} == {(2, 3)}


def test_the_forward_pass_is_the_sum_of_its_parts(batch, variables):
    params = jax.tree.map(np.asarray, variables["params"])
    encoded = run(small(output_hidden_states=True), variables, batch)
    x = params["word_embeddings"]["embedding"][batch["input_ids"]].astype(np.float64)
    x = x + params["position_embeddings"]["embedding"][:L]
    x = x + params["segment_embeddings"]["embedding"][batch["segment_ids"]]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = x * params["embeddings"]["norm"]["scale"] + params["embeddings"]["norm"]["bias"]
    x = x @ params["embedding_projection"]["kernel"] + params["embedding_projection"]["bias"]
    block = PostNormBlock(SelfAttention(H), FeedForward(F, "gelu_new"), layer_norm_eps=1e-5)
    stack = SharedStack(block, N, SHARING["all"])
    sequence, _ = stack.apply(
        {"params": variables["params"]["layers"]},
        jnp.asarray(x, jnp.float32),
        from_batch(batch),
        train=False,
    )
    pooler = params["pooler"]["dense"]
    pooled = np.tanh(sequence[:, 0] @ pooler["kernel"] + pooler["bias"])
    assert len(encoded.hidden_states) == N + 1
    np.testing.assert_allclose(encoded.hidden_states[0], x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(encoded.sequence, sequence, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(encoded.sequence, encoded.hidden_states[-1])
    np.testing.assert_allclose(encoded.pooled, pooled, rtol=1e-3, atol=1e-4)
    scores = small().apply(variables, jnp.ones((2, E)), method="attend")
    table = params["word_embeddings"]["embedding"]
    np.testing.assert_allclose(scores, np.tile(table.sum(1), (2, 1)), rtol=1e-5, atol=1e-5)


def test_embeddings_as_wide_as_the_layers_are_not_projected(batch, random_variables):
    wide = small(embedding_size=D)
    variables = random_variables(wide, batch)
    assert "embedding_projection" not in variables["params"]
    assert run(wide, variables, batch).sequence.shape == (B, L, D)


def test_without_a_pooler(batch, variables):
    bare = small(num_pooler_layers=0)
    assert shapes_of(bare).keys() == shapes_of(small()).keys() - {"pooler"}
    encoder = {name: part for name, part in variables["params"].items() if name != "pooler"}
    encoded = run(bare, {"params": encoder}, batch)
    assert encoded.pooled is None
    np.testing.assert_array_equal(encoded.sequence, run(small(), variables, batch).sequence)


def test_longer_padding_never_changes_an_output(batch, variables):
    expected = run(small(), variables, batch)
    longer = {name: jnp.pad(rows, ((0, 0), (0, 6))) for name, rows in batch.items()}
    got = run(small(), variables, longer)
    attention_mask = np.asarray(batch["attention_mask"])
    np.testing.assert_allclose(
        np.asarray(got.sequence)[:, :L][attention_mask],
        np.asarray(expected.sequence)[attention_mask],
        atol=1e-5,
    )
    np.testing.assert_allclose(got.pooled, expected.pooled, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"num_pooler_layers": 2},
            "albert.num_pooler_layers: got 2, expected an integer in [0, 1]",
        ),
        ({"sharing": "al"}, "albert.sharing: got 'al', expected one of "),
        (
            {"hidden_size": 770},
            "albert: got hidden_size=770, num_attention_heads=12, expected hidden_size to divide "
            "into num_attention_heads equal heads; nearest: 768, 780",
        ),
        (
            {"max_position_embeddings": 7},
            "a sequence of 8 tokens exceeds max_position_embeddings=7: shorten it or raise the",
        ),
    ],
)
def test_user_errors_come_before_compilation(fields, message):
    with pytest.raises(UserError) as error:
        shapes_of(Model(**fields))
    assert str(error.value).startswith(message)
