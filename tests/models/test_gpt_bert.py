"""GPT-BERT and LTG-BERT against the formulas of the released code; masks, initialisation."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax.errors import UserError
from bertjax.layers import masks
from bertjax.layers.depth_weighted_stack import init_weights
from bertjax.models.gpt_bert import Model

B, L, V, D, H, N = 2, 8, 31, 12, 3, 2
BUCKETS, LONGEST = 4, 6
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": 20,
    "max_position_embeddings": LONGEST,
    "position_bucket_size": BUCKETS,
    "initializer_range": 0.3,
}
MODELS = {
    "gpt_bert": Model(**SIZES),
    "ltg_bert": Model(**SIZES, attention_gate=False, layer_weights=False),
    "ltg_bert_interleaved": Model(
        **SIZES, attention_gate=False, layer_weights=False, interleaved_positions=True
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]


@pytest.fixture(scope="module")
def batch():
    """The first row is causal, the second bidirectional and padded."""
    attention_mask = jnp.asarray(np.arange(L) < np.array([[L], [5]]))
    visible = masks.bidirectional_or_causal(jnp.asarray([True, False]), attention_mask)
    ids = np.random.default_rng(0).integers(0, V, (B, L))
    return {"input_ids": jnp.asarray(ids), "attention_mask": visible}


@pytest.fixture(scope="module")
def variables(model, random_variables, batch):
    return random_variables(model, batch)


def bucket(distance):
    """`make_log_bucket_position` of the released code."""
    middle, size = BUCKETS // 2, min(abs(distance), LONGEST - 1)
    if size <= middle:
        return distance
    steps = np.log(size / middle) / np.log((LONGEST - 1) / middle) * (middle - 1)
    return int(np.sign(distance) * (np.ceil(steps) + middle))


def norm(x, parameters=None):
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return normal if parameters is None else normal * parameters["scale"] + parameters["bias"]


def gelu(x):
    return x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2)))


def gelu_by_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def attention(x, visible, relative, p, interleaved):
    """One row, one head and one pair of tokens at a time."""
    x = norm(x)

    def project(vectors, name):
        return np.einsum("ld,dhk->lhk", vectors, p[name]["kernel"]) + p[name]["bias"]

    query, key, value = (project(x, name) for name in ("query", "key", "value"))
    query_position, key_position = project(relative, "query"), project(relative, "key")
    if interleaved:
        both = np.concatenate([query_position, key_position], axis=1)
        query_position, key_position = both[:, ::2], both[:, 1::2]
    context = np.zeros_like(value)
    for head, q in np.ndindex(H, L):
        keys = np.flatnonzero(visible[q])
        scores = np.zeros(len(keys))
        for n, k in enumerate(keys):
            row = bucket(q - k) + BUCKETS - 1
            scores[n] = query[q, head] @ key[k, head]
            scores[n] += query[q, head] @ key_position[row, head]
            scores[n] += key[k, head] @ query_position[row, head]
        weights = scipy.special.softmax(scores / np.sqrt(3 * D / H))
        context[q, head] = weights @ value[keys, head]
    if "gate" in p:
        context = norm((context * gelu(project(x, "gate"))).reshape(L, D)).reshape(context.shape)
    output = np.einsum("lhk,hkd->ld", context, p["output"]["kernel"]) + p["output"]["bias"]
    return output if "gate" in p else norm(output, p["norm"])


def feed_forward(x, p):
    x = norm(x)
    hidden, gate = x @ p["intermediate"]["kernel"], x @ p["gate"]["kernel"]
    return norm(gelu_by_tanh(hidden) * gate) @ p["output"]["kernel"]


def by_hand(params, ids, visible, interleaved):
    """The sequence of one row, and the sums after each layer."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    relative = norm(params["relative_embeddings"]["embedding"], params["relative_norm"])
    x = norm(params["word_embeddings"]["embedding"][ids])
    outputs, sums = [x], [x]
    left = params["layers"].get("depth_weights")
    for layer in range(N):
        p = jax.tree.map(lambda leaf, at=layer: leaf[at], params["layers"]["block"])
        halves = (
            lambda x, p=p: attention(x, visible, relative, p["attention"], interleaved),
            lambda x, p=p: feed_forward(x, p["feed_forward"]),
        )
        for half in halves:
            x = x + half(x)
            outputs.append(x)
            if left is not None:
                own, left = left[: len(outputs)], left[len(outputs) :]
                x = sum(weight * output for weight, output in zip(own, outputs, strict=True))
        sums.append(x)
    assert left is None or not len(left)
    return norm(x), sums


def test_the_encoder_by_hand(model, variables, batch):
    """Attention with buckets, causal and bidirectional; the gate; sums over layers."""
    model = dataclasses.replace(model, output_hidden_states=True)
    encoded = jax.jit(lambda v, b: model.apply(v, b, train=False))(variables, batch)
    for row, length in enumerate((L, 5)):
        visible = np.asarray(batch["attention_mask"][row])
        ids, interleaved = batch["input_ids"][row], model.interleaved_positions
        expected, states = by_hand(variables["params"], ids, visible, interleaved)
        np.testing.assert_allclose(encoded.sequence[row, :length], expected[:length], atol=2e-4)
        for found, state in zip(encoded.hidden_states, states, strict=True):
            np.testing.assert_allclose(found[row, :length], state[:length], rtol=1e-3, atol=2e-4)


def test_a_row_does_not_attend_to_later_tokens_or_padding(model, variables, batch):
    """Invariant 7, for a causal and a bidirectional row of one batch."""
    encode = jax.jit(lambda ids: model.apply(variables, batch | {"input_ids": ids}, train=False))
    before = encode(batch["input_ids"]).sequence
    changed = encode(batch["input_ids"].at[:, 5:].add(1) % V).sequence
    np.testing.assert_array_equal(before[0, :5], changed[0, :5])
    np.testing.assert_array_equal(before[1, :5], changed[1, :5])
    first = encode(batch["input_ids"].at[:, 4].add(1) % V).sequence
    np.testing.assert_array_equal(before[0, :4], first[0, :4])
    assert (np.abs(before[1, :4] - first[1, :4]).max(axis=1) > 1e-3).all()


def test_sums_initially_are_the_last_output(batch, random_variables):
    """With its initial weights the stack is the one without them."""
    model = MODELS["gpt_bert"]
    plain = dataclasses.replace(model, layer_weights=False)
    params = random_variables(plain, batch)["params"]
    layers = params["layers"] | {"depth_weights": init_weights(jax.random.key(0), 2 * N)}
    found, expected = (
        jax.jit(lambda p, m=each: m.apply({"params": p}, batch, train=False).sequence)(own)
        for each, own in ((model, params | {"layers": layers}), (plain, params))
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_feed_forward_kernels_shrink_with_depth():
    model = dataclasses.replace(
        MODELS["gpt_bert"], num_hidden_layers=3, hidden_size=96, intermediate_size=128
    )
    one = {"input_ids": jnp.zeros((1, 2), int), "attention_mask": jnp.ones((1, 2), bool)}
    params = nn.meta.unbox(
        jax.jit(lambda key: model.init(key, one, train=False))(jax.random.key(3))
    )
    block = params["params"]["layers"]["block"]
    for name in ("intermediate", "gate", "output"):
        found = np.asarray(block["feed_forward"][name]["kernel"]).std(axis=(1, 2))
        np.testing.assert_allclose(found / found[0], (1, 1 / np.sqrt(2), 1 / np.sqrt(3)), rtol=0.05)
    queries = np.asarray(block["attention"]["query"]["kernel"]).std(axis=(1, 2, 3))
    np.testing.assert_allclose(queries / queries[0], 1, rtol=0.05)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 10}, "got hidden_size=10, num_attention_heads=3"),
        ({"position_bucket_size": 10}, "expected position_bucket_size from 2 to 2 \\* max_pos"),
        ({"remat": "everything"}, "remat"),
    ],
)
def test_impossible_fields_are_one_line(fields, message, batch):
    model = dataclasses.replace(MODELS["gpt_bert"], **fields)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: model.init(jax.random.key(0), batch, train=False))
