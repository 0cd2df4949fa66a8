"""Parity with the DistilBERT of transformers to 1e-4 in float32 (invariant 10)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.bert import Model
from bertjax.objectives import mlm
from bertjax.pretrainer import Pretrainer

B, L, V, D, N, H, F = 3, 11, 97, 24, 3, 4, 40
LENGTHS = np.array([[L], [5], [1]])
NAMES = {
    "encoder/word_embeddings/embedding": "distilbert.embeddings.word_embeddings.weight",
    "encoder/position_embeddings/embedding": "distilbert.embeddings.position_embeddings.weight",
    "encoder/embeddings/norm": "distilbert.embeddings.LayerNorm",
    "encoder/layers/block/attention/query": "distilbert.transformer.layer.*.attention.q_lin",
    "encoder/layers/block/attention/key": "distilbert.transformer.layer.*.attention.k_lin",
    "encoder/layers/block/attention/value": "distilbert.transformer.layer.*.attention.v_lin",
    "encoder/layers/block/attention/output": "distilbert.transformer.layer.*.attention.out_lin",
    "encoder/layers/block/attention_norm": "distilbert.transformer.layer.*.sa_layer_norm",
    "encoder/layers/block/feed_forward/intermediate": "distilbert.transformer.layer.*.ffn.lin1",
    "encoder/layers/block/feed_forward/output": "distilbert.transformer.layer.*.ffn.lin2",
    "encoder/layers/block/feed_forward_norm": "distilbert.transformer.layer.*.output_layer_norm",
    "mlm/transform/dense": "vocab_transform",
    "mlm/transform/norm": "vocab_layer_norm",
    "mlm/bias": "vocab_projector.bias",
}


def pretrainer():
    model = Model(
        vocab_size=V,
        hidden_size=D,
        num_hidden_layers=N,
        num_attention_heads=H,
        intermediate_size=F,
        max_position_embeddings=17,
        type_vocab_size=0,
        num_pooler_layers=0,
        output_hidden_states=True,
    )
    return Pretrainer(model, {"mlm": lambda: mlm.Objective(4, (), V)})


@pytest.fixture(scope="module")
def batch():
    """Every position is predicted; segments are given and have no effect."""
    generator = np.random.default_rng(0)
    attention_mask = np.arange(L) < LENGTHS
    return {
        "input_ids": jnp.asarray(generator.integers(0, V, (B, L))),
        "attention_mask": jnp.asarray(attention_mask),
        "segment_ids": jnp.asarray((np.arange(L) >= [[4], [2], [8]]).astype(np.int64)),
        "mlm_positions": jnp.tile(jnp.arange(L), (B, 1)),
        "mlm_labels": jnp.asarray(generator.integers(0, V, (B, L))),
        "mlm_weights": jnp.asarray(attention_mask, jnp.float32),
    }


@pytest.fixture(scope="module", params=[0.05, 0.4], ids=["published", "magnified"])
def scale(request):
    return request.param


@pytest.fixture(scope="module")
def params(batch, random_variables, scale):
    return random_variables(pretrainer(), batch, scale)["params"]


@pytest.fixture(scope="module")
def bertjax_outputs(batch, params):
    def outputs(module: nn.Module, batch):
        encoded = module.encoder(batch, train=False)
        states = encoded.hidden_states
        scores = [module.encoder.attention_scores(states[i], i, batch) for i in range(N)]
        # Softmax over the keys that are not padding.
        masked_scores = jnp.where(
            batch["attention_mask"][:, None, None], jnp.stack(scores), -jnp.inf
        )
        return {
            "hidden_states": jnp.stack(states),
            "attention": jax.nn.softmax(masked_scores, axis=-1),
            "logits": module.mlm.scores(module.encoder, encoded, batch, train=False)[0],
        }

    return without_padding(pretrainer().apply({"params": params}, batch, method=outputs))


def without_padding(arrays):
    """Outputs with those of padding removed."""
    attention_mask = np.arange(L) < LENGTHS
    return {
        "hidden_states": np.asarray(arrays["hidden_states"]) * attention_mask[None, :, :, None],
        "attention": np.asarray(arrays["attention"]) * attention_mask[None, :, None, :, None],
        "logits": np.asarray(arrays["logits"]) * attention_mask[:, :, None],
    }


def test_golden_outputs(bertjax_outputs, scale, golden_parity):
    golden_parity(f"distilbert_{scale}", bertjax_outputs)


@pytest.mark.slow
def test_outputs_are_equal(batch, params, bertjax_outputs, scale, load_into, golden_parity):
    torch = pytest.importorskip(
        "torch", reason="parity needs torch, of the dependency group test-all"
    )
    transformers = pytest.importorskip("transformers", reason="parity needs the group test-all")
    config = transformers.DistilBertConfig(
        vocab_size=V,
        dim=D,
        n_layers=N,
        n_heads=H,
        hidden_dim=F,
        max_position_embeddings=17,
        attn_implementation="eager",
    )
    model = load_into(transformers.DistilBertForMaskedLM(config), params, NAMES)
    with torch.no_grad():
        found = model(
            torch.tensor(np.asarray(batch["input_ids"])),
            attention_mask=torch.tensor(np.asarray(batch["attention_mask"])).long(),
            output_hidden_states=True,
            output_attentions=True,
        )
    reference = without_padding(
        {
            "hidden_states": torch.stack(found.hidden_states).numpy(),
            "attention": torch.stack(found.attentions).numpy(),
            "logits": found.logits.numpy(),
        }
    )
    for name, expected in reference.items():
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(bertjax_outputs[name], expected, atol=1e-4, rtol=0, err_msg=name)
    golden_parity(f"distilbert_{scale}", bertjax_outputs, reference)
