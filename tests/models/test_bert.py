"""BERT's encoder: sizes, names, initialisation, arithmetic, padding (invariant 7)."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.masks import from_batch
from bertjax.models.bert import Model

B, L, V, D, N, H, F = 3, 7, 53, 15, 2, 3, 11
SMALL = {
    "vocab_size": V,
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


@pytest.mark.parametrize(
    ("layers", "width", "count"),
    [
        (2, 128, 4_385_920),
        (4, 256, 11_170_560),
        (4, 512, 28_763_648),
        (8, 512, 41_373_184),
        (12, 768, 109_482_240),
        (24, 1024, 335_141_888),
    ],
)
def test_published_parameter_counts(layers, width, count):
    model = Model(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes_of(model))) == count


def test_the_defaults_are_base():
    assert shapes_of(Model()) == shapes_of(
        Model(30522, 768, 12, 12, 3072, max_position_embeddings=512, type_vocab_size=2)
    )
    assert (Model().hidden_dropout_prob, Model().attention_probs_dropout_prob) == (0.1, 0.1)
    assert (Model().hidden_act, Model().layer_norm_eps) == ("gelu", 1e-12)


TREE = """
embeddings/norm/bias                           15          norm
embeddings/norm/scale                          15          norm
layers/block/attention/key/bias                2x3x5       layers heads kv
layers/block/attention/key/kernel              2x15x3x5    layers embed heads kv
layers/block/attention/output/bias             2x15        layers embed
layers/block/attention/output/kernel           2x3x5x15    layers heads kv embed
layers/block/attention/query/bias              2x3x5       layers heads kv
layers/block/attention/query/kernel            2x15x3x5    layers embed heads kv
layers/block/attention/value/bias              2x3x5       layers heads kv
layers/block/attention/value/kernel            2x15x3x5    layers embed heads kv
layers/block/attention_norm/bias               2x15        layers norm
layers/block/attention_norm/scale              2x15        layers norm
layers/block/feed_forward/intermediate/bias    2x11        layers mlp
layers/block/feed_forward/intermediate/kernel  2x15x11     layers embed mlp
layers/block/feed_forward/output/bias          2x15        layers embed
layers/block/feed_forward/output/kernel        2x11x15     layers mlp embed
layers/block/feed_forward_norm/bias            2x15        layers norm
layers/block/feed_forward_norm/scale           2x15        layers norm
pooler/dense/bias                              15          -
pooler/dense/kernel                            15x15       embed -
position_embeddings/embedding                  13x15       - embed
segment_embeddings/embedding                   2x15        - embed
word_embeddings/embedding                      53x15       vocab embed
"""


def test_names_shapes_and_axes_of_parameters():
    """Checkpoints, sharding and the exchange with transformers depend on these names."""
    lines = []
    for path, box in jax.tree_util.tree_leaves_with_path(
        shapes_of(small()), is_leaf=lambda node: isinstance(node, nn.LogicallyPartitioned)
    ):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        shape = "x".join(map(str, box.value.shape))
        lines.append((name, shape, *(axis or "-" for axis in box.names)))
    assert sorted(lines) == [tuple(line.split()) for line in TREE.strip().splitlines()]


def test_initialisation():
    model = small(vocab_size=997, hidden_size=96, intermediate_size=200, initializer_range=0.05)
    batch = {"input_ids": jnp.zeros((1, 2), jnp.int32), "attention_mask": jnp.ones((1, 2), bool)}
    params = jax.jit(lambda: nn.meta.unbox(model.init(jax.random.key(3), batch, train=False)))()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params["params"]):
        kind = path[-1].key
        if kind == "bias":
            assert np.all(leaf == 0)
        elif kind == "scale":
            assert np.all(leaf == 1)
        else:
            # A normal cut at two deviations has 0.8796 of its deviation.
            error = 5 / np.sqrt(2 * leaf.size)
            assert np.std(leaf) == pytest.approx(0.05 * 0.8796, rel=error), path
            assert np.abs(leaf).max() <= 0.1


def one_layer(block, index):
    return jax.tree.map(lambda leaf: leaf[index], block)


def test_the_forward_pass_is_the_sum_of_its_parts(batch, variables):
    params = jax.tree.map(np.asarray, variables["params"])
    encoded = run(small(output_hidden_states=True), variables, batch)

    x = params["word_embeddings"]["embedding"][batch["input_ids"]].astype(np.float64)
    x = x + params["position_embeddings"]["embedding"][:L]
    x = x + params["segment_embeddings"]["embedding"][batch["segment_ids"]]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = x * params["embeddings"]["norm"]["scale"] + params["embeddings"]["norm"]["bias"]
    states = [jnp.asarray(x, jnp.float32)]
    block = PostNormBlock(SelfAttention(H), FeedForward(F), layer_norm_eps=1e-5)
    for index in range(N):
        layer = {"params": one_layer(variables["params"]["layers"]["block"], index)}
        states.append(block.apply(layer, states[-1], from_batch(batch), train=False))
    pooler = params["pooler"]["dense"]
    pooled = np.tanh(states[-1][:, 0] @ pooler["kernel"] + pooler["bias"])

    assert len(encoded.hidden_states) == N + 1
    for got, expected in zip(encoded.hidden_states, states, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(encoded.sequence, encoded.hidden_states[-1])
    np.testing.assert_allclose(encoded.pooled, pooled, rtol=1e-4, atol=1e-4)
    assert run(small(), variables, batch).hidden_states is None


def test_positions_and_segments_have_defaults(batch, variables):
    plain = {name: batch[name] for name in ("input_ids", "attention_mask")}
    positions = jnp.broadcast_to(jnp.arange(L), (B, L))
    printed = plain | {"segment_ids": jnp.zeros((B, L), jnp.int32), "position_ids": positions}
    expected = run(small(), variables, plain).sequence
    np.testing.assert_array_equal(run(small(), variables, printed).sequence, expected)
    for other in ({"position_ids": positions + 1}, {"segment_ids": printed["segment_ids"] + 1}):
        assert np.abs(run(small(), variables, printed | other).sequence - expected).max() > 1e-2


def test_attend_scores_with_the_word_embeddings(batch, variables):
    hidden = jnp.asarray(np.random.default_rng(2).normal(size=(4, D)), jnp.float32)
    scores = small().apply(variables, hidden, method="attend")
    expected = hidden @ variables["params"]["word_embeddings"]["embedding"].T
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    assert small().embedding_size == D


def test_scores_of_attention_are_those_of_the_layer(batch, variables):
    states = run(small(output_hidden_states=True), variables, batch).hidden_states
    for layer in range(N):
        own = one_layer(variables["params"]["layers"]["block"]["attention"], layer)
        expected = SelfAttention(H).apply(
            {"params": own}, states[layer], from_batch(batch), method="scores"
        )
        got = small().apply(variables, states[layer], layer, batch, method="attention_scores")
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        assert np.abs(got).max() > 0.1


def test_dropout_acts_in_training_alone(batch, variables):
    @functools.partial(jax.jit, static_argnums=0)
    def train(model, key):
        rngs = {"dropout": jax.random.key(key)}
        return model.apply(variables, batch, train=True, rngs=rngs).sequence

    plain = run(small(), variables, batch).sequence
    off = small(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    np.testing.assert_allclose(train(off, 0), plain, rtol=1e-5, atol=1e-5)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        other = "attention_probs" if name.startswith("hidden") else "hidden"
        model = small(**{name: 0.5, f"{other}_dropout_prob": 0.0})
        assert np.abs(train(model, 0) - plain).max() > 1e-2
        assert np.abs(train(model, 0) - train(model, 1)).max() > 1e-2


@pytest.mark.parametrize("precision", ["bfloat16", "bfloat16_operands"])
def test_lower_precision_is_close(precision, batch, variables):
    exact = run(small(), variables, batch)
    rough = run(small(precision=precision), variables, batch)
    assert rough.sequence.dtype == (jnp.bfloat16 if precision == "bfloat16" else jnp.float32)
    error = np.abs(np.asarray(rough.sequence, np.float32) - exact.sequence)
    assert 0 < error.mean() < 0.02


def test_padding_never_changes_an_output(batch, variables):
    expected = run(small(), variables, batch)
    attention_mask = np.asarray(batch["attention_mask"])
    other = {
        "input_ids": jnp.where(attention_mask, batch["input_ids"], (batch["input_ids"] + 17) % V),
        "segment_ids": jnp.where(attention_mask, batch["segment_ids"], 1 - batch["segment_ids"]),
    }
    got = run(small(), variables, batch | other)
    np.testing.assert_array_equal(
        np.asarray(got.sequence)[attention_mask], np.asarray(expected.sequence)[attention_mask]
    )
    np.testing.assert_array_equal(got.pooled, expected.pooled)


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


def slopes(batch, variables, **fields):
    """The gradient of each output [l] of each row by the word at each position [m]: [B L M]."""
    probe = jnp.asarray(np.random.default_rng(5).normal(size=D), jnp.float32)
    table = variables["params"]["word_embeddings"]["embedding"]

    def output(words):
        # One table row a token, so that the gradient to the row is that to the token.
        private = jax.tree.map(lambda leaf: leaf, variables)
        private["params"]["word_embeddings"] = {"embedding": words.reshape(B * L, D)}
        ids = jnp.arange(B * L).reshape(B, L)
        model = small(vocab_size=B * L, **fields)
        return model.apply(private, batch | {"input_ids": ids}, train=False).sequence @ probe

    jacobian = jax.jit(jax.jacrev(output))(table[batch["input_ids"]])
    size = np.abs(jacobian).max(axis=-1)
    for row in range(B):
        others = np.arange(B) != row
        assert np.all(size[row][:, others] == 0)
    return np.stack([size[row, :, row] for row in range(B)])


def test_no_gradient_flows_from_padding_nor_between_packed_neighbours(batch, variables):
    """Some padding has no pack id, some that of a text: the attention mask hides the latter."""
    packed_segment_ids = jnp.array(
        [[1, 1, 1, 2, 2, 3, 3], [4, 4, 4, 4, 4, 0, 4], [1, 2, 1, 2, 1, 0, 1]]
    )
    got = slopes(batch | {"pack_ids": packed_segment_ids}, variables)
    same = np.asarray(packed_segment_ids[:, :, None] == packed_segment_ids[:, None, :])
    attention_mask = np.asarray(batch["attention_mask"])
    visible = same & attention_mask[:, None, :]
    assert np.all(got[visible & attention_mask[:, :, None]] > 0)
    assert np.all(got[~visible & attention_mask[:, :, None]] == 0)


def test_a_visible_matrix_applies_in_all_layers(batch, variables):
    """Two groups of tokens: a branch attends to the trunk, but the trunk not to the branch."""
    trunk = np.arange(L) < 4
    matrix = np.broadcast_to(trunk[None, None, :] | ~trunk[None, :, None], (B, L, L))
    got = slopes(batch | {"attention_mask": jnp.asarray(matrix)}, variables)
    assert np.all(got[matrix] > 0)
    assert np.all(got[~matrix] == 0)


def test_only_the_entity_attends_to_its_triples(batch, variables):
    """K-BERT with one layer; in further layers, a branch reaches others through its entity."""
    branches = jnp.array([[0, 0, 1, 1, 0, 2, 0], [0, 0, 1, 2, 0, 0, 0], [0, 0, 0, 0, 1, 1, 0]])
    entities = jnp.array([[0, 1, 1, 1, 2, 2, 0], [0, 1, 1, 1, 0, 0, 0], [0, 0, 3, 3, 3, 3, 0]])
    params = dict(variables["params"])
    params["layers"] = jax.tree.map(lambda leaf: leaf[:1], params["layers"])
    tree = {"branch_ids": branches, "entity_ids": entities}
    got = slopes(batch | tree, {"params": params}, num_hidden_layers=1)
    attention_mask = np.asarray(batch["attention_mask"])
    visible = (
        np.asarray(masks.sentence_trees(branches, entities).array())[:, 0] & attention_mask[:, None]
    )
    assert np.all(got[visible & attention_mask[:, :, None]] > 0)
    assert np.all(got[~visible & attention_mask[:, :, None]] == 0)
    assert 0.1 < np.mean(~visible[0]) < 0.9


def test_packed_texts_have_the_same_outputs_as_alone(batch, variables):
    first, second = batch["input_ids"][0, :4], batch["input_ids"][1, :3]
    packed = {
        "input_ids": jnp.concatenate([first, second])[None],
        "position_ids": jnp.array([[0, 1, 2, 3, 0, 1, 2]]),
        "pack_ids": jnp.array([[1, 1, 1, 1, 2, 2, 2]]),
        "attention_mask": jnp.ones((1, 7), bool),
    }
    got = run(small(), variables, packed).sequence[0]
    for text, place in ((first, slice(0, 4)), (second, slice(4, 7))):
        alone = {"input_ids": text[None], "attention_mask": jnp.ones((1, len(text)), bool)}
        expected = run(small(), variables, alone).sequence[0]
        np.testing.assert_allclose(got[place], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"hidden_size": 770},
            "bert: got hidden_size=770, num_attention_heads=12, expected hidden_size to divide "
            "into num_attention_heads equal heads; nearest: 768, 780",
        ),
        (
            {"hidden_size": 8},
            "bert: got hidden_size=8, num_attention_heads=12, expected hidden_size to divide into "
            "num_attention_heads equal heads; nearest: 12",
        ),
        ({"hidden_act": "gellu"}, "bert.hidden_act: got 'gellu', expected one of "),
        ({"num_pooler_layers": 2}, "bert.num_pooler_layers: got 2, expected an integer in [0, 1]"),
        ({"precision": "bf16"}, "bert.precision: got 'bf16', expected one of "),
        ({"remat": "dot"}, "bert.remat: got 'dot', expected one of "),
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
