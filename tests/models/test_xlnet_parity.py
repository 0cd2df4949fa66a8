"""Parity with the XLNet of transformers, to 1e-4 in float32 (invariant 10)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.xlnet import Model
from bertjax.objectives import permutation_lm
from bertjax.pretrainer import Pretrainer

torch = pytest.importorskip("torch", reason="parity needs torch, of the dependency group test-all")
transformers = pytest.importorskip(
    "transformers", reason="parity needs transformers, of the group test-all"
)

pytestmark = pytest.mark.slow

B, L, P, T, V, D, N, H, F = 3, 11, 4, 7, 97, 24, 3, 4, 40
NAMES = {
    "attention/query/kernel": "rel_attn.q",
    "attention/key/kernel": "rel_attn.k",
    "attention/value/kernel": "rel_attn.v",
    "attention/relative/kernel": "rel_attn.r",
    "attention/content_bias": "rel_attn.r_w_bias",
    "attention/position_bias": "rel_attn.r_r_bias",
    "attention/segment_bias": "rel_attn.r_s_bias",
    "attention/segments": "rel_attn.seg_embed",
    "attention_norm/scale": "rel_attn.layer_norm.weight",
    "attention_norm/bias": "rel_attn.layer_norm.bias",
    "feed_forward/intermediate/bias": "ff.layer_1.bias",
    "feed_forward/output/bias": "ff.layer_2.bias",
    "feed_forward_norm/scale": "ff.layer_norm.weight",
    "feed_forward_norm/bias": "ff.layer_norm.bias",
}
TRANSPOSED = {
    "attention/output/kernel": ("rel_attn.o", (1, 2, 0)),
    "feed_forward/intermediate/kernel": ("ff.layer_1.weight", (1, 0)),
    "feed_forward/output/kernel": ("ff.layer_2.weight", (1, 0)),
}


@pytest.fixture(scope="module", params=[1.0, 8.0], ids=["published", "magnified"])
def scale(request):
    return request.param


@pytest.fixture(scope="module", params=[0, 5], ids=["unclamped", "clamped"])
def clamp_len(request):
    return request.param


@pytest.fixture(scope="module")
def reference(scale, clamp_len):
    """The model of transformers with random weights; a large scale leaves the linear range."""
    torch.manual_seed(0)
    config = transformers.XLNetConfig(
        vocab_size=V,
        d_model=D,
        n_layer=N,
        n_head=H,
        d_inner=F,
        ff_activation="gelu",
        clamp_len=clamp_len,
        mem_len=T,
    )
    model = transformers.XLNetLMHeadModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            center = 1.0 if name.endswith("layer_norm.weight") else 0.0
            weight.copy_(center + scale * 0.05 * torch.randn(weight.shape))
    return model


@pytest.fixture(scope="module")
def params(reference):
    """The weights of the reference as parameters of bertjax."""
    weights = {name: value.numpy() for name, value in reference.state_dict().items()}
    block = {}

    def put(path, values):
        *folders, leaf = path.split("/")
        place = block
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = jnp.asarray(np.stack(values))

    for path, name in NAMES.items():
        put(path, [weights[f"transformer.layer.{i}.{name}"] for i in range(N)])
    for path, (name, axes) in TRANSPOSED.items():
        put(path, [weights[f"transformer.layer.{i}.{name}"].transpose(axes) for i in range(N)])
    encoder = {
        "word_embeddings": {"embedding": weights["transformer.word_embedding.weight"]},
        "mask_embedding": weights["transformer.mask_emb"],
        "layers": {"block": block},
    }
    head = {"bias": weights["lm_loss.bias"]}
    return jax.tree.map(jnp.asarray, {"encoder": encoder, "permutation_lm": head})


@pytest.fixture(scope="module")
def model(clamp_len):
    return Model(V, D, N, H, F, mem_len=T, clamp_len=clamp_len, output_hidden_states=True)


@pytest.fixture(scope="module")
def batch():
    """Full length, length 1, and a length in between; three kinds of segments."""
    generator = np.random.default_rng(0)
    attention_mask = np.arange(L) < np.array([[L], [1], [8]])
    segments = (np.arange(L) >= np.array([[4], [2], [3]])) * 1
    segments[np.arange(B), attention_mask.sum(axis=1) - 1] = 2
    return {
        "input_ids": generator.integers(0, V, (B, L)),
        "attention_mask": attention_mask,
        "segment_ids": segments,
    }


def hf_inputs(batch, **more):
    arrays = {
        "input_ids": torch.tensor(batch["input_ids"]),
        "attention_mask": torch.tensor(batch["attention_mask"]).float(),
        "token_type_ids": torch.tensor(batch["segment_ids"]),
    }
    return arrays | more


def test_every_layer_is_equal(reference, params, model, batch):
    with torch.no_grad():
        expected = reference.transformer(
            **hf_inputs(batch), output_hidden_states=True, use_mems=False
        )
    encoded = model.apply(
        {"params": params["encoder"]}, jax.tree.map(jnp.asarray, batch), train=False
    )
    attention_mask = batch["attention_mask"]
    assert len(expected.hidden_states) == len(encoded.hidden_states) == N + 1
    for got, states in zip(encoded.hidden_states, expected.hidden_states, strict=True):
        np.testing.assert_allclose(
            np.asarray(got)[attention_mask], states.numpy()[attention_mask], atol=1e-4
        )
    last = attention_mask.sum(axis=1) - 1
    np.testing.assert_allclose(
        encoded.cls_state, expected.last_hidden_state.numpy()[np.arange(B), last], atol=1e-4
    )


def test_left_padding_has_no_effect(reference, params, model, batch):
    """Released models were padded on the left: positions are relative."""
    attention_mask = batch["attention_mask"]
    moved = {
        name: np.stack(
            [np.roll(row, L - n) for row, n in zip(rows, attention_mask.sum(axis=1), strict=True)]
        )
        for name, rows in batch.items()
    }
    with torch.no_grad():
        expected = reference.transformer(
            **hf_inputs(moved), use_mems=False
        ).last_hidden_state.numpy()
    encoded = model.apply(
        {"params": params["encoder"]}, jax.tree.map(jnp.asarray, batch), train=False
    )
    np.testing.assert_allclose(
        np.asarray(encoded.sequence)[attention_mask], expected[moved["attention_mask"]], atol=1e-4
    )


@pytest.fixture(scope="module")
def permutation_batch(batch):
    """Targets and an order without some tokens; the last slots of the first row are unused."""
    generator = np.random.default_rng(1)
    positions = np.array([[9, 2, 5, 7], [0, 0, 0, 0], [1, 6, 3, 4]])
    order = np.full((B, L), -1)
    for row in range(B):
        order[row, positions[row]] = generator.permutation(L)[:P]
    order[0, 10] = 3
    weights = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]], np.float32)
    labels = np.take_along_axis(batch["input_ids"], positions, axis=1)
    return batch | {
        "prediction_order": order,
        "mlm_positions": positions,
        "mlm_labels": labels,
        "mlm_weights": weights,
    }


def test_the_query_stream_is_equal(reference, params, model, permutation_batch):
    order, positions = permutation_batch["prediction_order"], permutation_batch["mlm_positions"]
    visible = (order[:, None, :] < 0) | (order[:, None, :] < order[:, :, None])
    mapping = np.zeros((B, P, L), np.float32)
    np.put_along_axis(mapping, positions[..., None], 1, axis=2)
    with torch.no_grad():
        expected = reference(
            **hf_inputs(permutation_batch),
            perm_mask=torch.tensor(~visible).float(),
            target_mapping=torch.tensor(mapping),
            use_mems=False,
        ).logits.numpy()

    def logits(module, batch):
        queries = module.encoder(batch, train=False).queries
        return module.encoder.attend(queries) + params["permutation_lm"]["bias"]

    pretrainer = Pretrainer(model, {"permutation_lm": lambda: permutation_lm.Objective(())})
    jax_batch = jax.tree.map(jnp.asarray, permutation_batch)
    got = np.asarray(pretrainer.apply({"params": params}, jax_batch, method=logits))
    real = permutation_batch["mlm_weights"] > 0
    np.testing.assert_allclose(got[real], expected[real], atol=1e-4)
    losses, metrics = pretrainer.apply({"params": params}, jax_batch, train=False)
    entropy = torch.nn.functional.cross_entropy(
        torch.tensor(expected[real]),
        torch.tensor(permutation_batch["mlm_labels"][real]),
        reduction="sum",
    )
    assert float(losses["permutation_lm"][0]) == pytest.approx(float(entropy), rel=1e-4)
    assert losses["permutation_lm"][1] == real.sum()
    assert metrics["permutation_lm/accuracy"][1] == real.sum()


def test_three_segments_with_memory_are_equal(reference, params, model):
    """Every row continues twice; the memory of 7 is shorter than a segment of 11."""
    generator = np.random.default_rng(3)
    carry, mems = None, None
    for step in range(3):
        input_ids = generator.integers(0, V, (B, L))
        with torch.no_grad():
            expected = reference.transformer(torch.tensor(input_ids), mems=mems, use_mems=True)
        mems = expected.mems
        batch = {
            "input_ids": jnp.asarray(input_ids),
            "attention_mask": jnp.ones((B, L), bool),
            "memory_mask": jnp.ones((B, L), bool),
            "is_continuation": jnp.full(B, step > 0),
        }
        if carry is None:
            variables = jax.eval_shape(
                lambda b: model.init(jax.random.key(0), b, train=False), batch
            )
            carry = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), variables["carry"])
        encoded, changed = model.apply(
            {"params": params["encoder"], "carry": carry}, batch, train=False, mutable=["carry"]
        )
        carry = changed["carry"]
        np.testing.assert_allclose(encoded.sequence, expected.last_hidden_state.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "count"), [((), 116718336), ((32000, 1024, 24, 16, 4096), 360268800)]
)
def test_parameter_counts_of_published_sizes(fields, count):
    batch = {"input_ids": jnp.zeros((1, 2), jnp.int32), "attention_mask": jnp.ones((1, 2), bool)}
    names = ("vocab_size", "d_model", "n_layer", "n_head", "d_inner")
    shapes = jax.eval_shape(lambda: Model(*fields).init(jax.random.key(0), batch, train=False))
    assert sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes["params"])) == count
    fields = fields or (32000, 768, 12, 12, 3072)
    with torch.device("meta"):
        hf_model = transformers.XLNetModel(
            transformers.XLNetConfig(**dict(zip(names, fields, strict=True)))
        )
    assert sum(weight.numel() for weight in hf_model.parameters()) == count
