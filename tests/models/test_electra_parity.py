"""Parity with the ELECTRA of transformers, both towers, to 1e-4 in float32 (invariant 10)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.bert import Model
from bertjax.objectives import generator, rtd
from bertjax.pretrainer import Pretrainer

B, L, V, D, E, N, H, F = 3, 11, 97, 24, 10, 3, 4, 40
COMMON = {
    "vocab_size": V,
    "embedding_size": E,
    "num_hidden_layers": N,
    "max_position_embeddings": 17,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
SIZES = {"hidden_size": D, "num_attention_heads": H, "intermediate_size": F}
SMALL_SIZES = {"hidden_size": D // 2, "num_attention_heads": H // 2, "intermediate_size": F // 2}
LENGTHS = np.array([[L], [5], [1]])

EMBEDDINGS = {
    "encoder/word_embeddings/embedding": "electra.embeddings.word_embeddings.weight",
    "encoder/position_embeddings/embedding": "electra.embeddings.position_embeddings.weight",
    "encoder/segment_embeddings/embedding": "electra.embeddings.token_type_embeddings.weight",
    "encoder/embeddings/norm": "electra.embeddings.LayerNorm",
}
TOWER = {
    "embeddings_project": "electra.embeddings_project",
    "layers/block/attention/query": "electra.encoder.layer.*.attention.self.query",
    "layers/block/attention/key": "electra.encoder.layer.*.attention.self.key",
    "layers/block/attention/value": "electra.encoder.layer.*.attention.self.value",
    "layers/block/attention/output": "electra.encoder.layer.*.attention.output.dense",
    "layers/block/attention_norm": "electra.encoder.layer.*.attention.output.LayerNorm",
    "layers/block/feed_forward/intermediate": "electra.encoder.layer.*.intermediate.dense",
    "layers/block/feed_forward/output": "electra.encoder.layer.*.output.dense",
    "layers/block/feed_forward_norm": "electra.encoder.layer.*.output.LayerNorm",
}
DISCRIMINATOR = {
    **EMBEDDINGS,
    **{f"encoder/{bertjax_name}": hf_name for bertjax_name, hf_name in TOWER.items()},
    "rtd/dense": "discriminator_predictions.dense",
    "rtd/classifier/dense": "discriminator_predictions.dense_prediction",
}
GENERATOR = {
    **EMBEDDINGS,
    **{f"generator/encoder/{bertjax_name}": hf_name for bertjax_name, hf_name in TOWER.items()},
    "generator/mlm/transform/dense": "generator_predictions.dense",
    "generator/mlm/transform/norm": "generator_predictions.LayerNorm",
    "generator/mlm/bias": "generator_lm_head.bias",
}


def pretrainer():
    model = Model(**COMMON, **SIZES, num_pooler_layers=0, output_hidden_states=True)
    objectives = {
        "generator": lambda: generator.Objective(4, (), V, size=0.5),
        "rtd": rtd.Objective,
    }
    return Pretrainer(model, objectives)


@pytest.fixture(scope="module")
def batch():
    """Every position is predicted; one row is full, one padded, one has a single token."""
    generator = np.random.default_rng(0)
    attention_mask = np.arange(L) < LENGTHS
    return {
        "input_ids": jnp.asarray(generator.integers(0, V, (B, L))),
        "attention_mask": jnp.asarray(attention_mask),
        "segment_ids": jnp.asarray((np.arange(L) >= [[4], [2], [8]]).astype(np.int64)),
        "mlm_positions": jnp.tile(jnp.arange(L), (B, 1)),
        "mlm_labels": jnp.asarray(generator.integers(0, V, (B, L))),
        "mlm_weights": jnp.asarray(attention_mask, jnp.float32),
        "example_key": jax.random.split(jax.random.key(0), B),
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
        generated = module.generator.prepare(module.encoder, batch, train=False)
        return {
            "hidden_states": jnp.stack(encoded.hidden_states[1:]),
            "replaced": module.rtd.logits(module.encoder, encoded.sequence),
            "generated": generated["generator_logits"],
        }

    found = pretrainer().apply({"params": params}, batch, method=outputs)
    return without_padding(found)


def without_padding(arrays):
    """Outputs with those of padding removed."""
    attention_mask = np.arange(L) < LENGTHS
    return {
        "hidden_states": np.asarray(arrays["hidden_states"]) * attention_mask[None, :, :, None],
        "replaced": np.asarray(arrays["replaced"]) * attention_mask,
        "generated": np.asarray(arrays["generated"]) * attention_mask[:, :, None],
    }


def test_golden_outputs(bertjax_outputs, scale, golden_parity):
    golden_parity(f"electra_{scale}", bertjax_outputs)


@pytest.mark.slow
def test_outputs_are_equal(batch, params, bertjax_outputs, scale, load_into, golden_parity):
    torch = pytest.importorskip(
        "torch", reason="parity needs torch, of the dependency group test-all"
    )
    transformers = pytest.importorskip("transformers", reason="parity needs the group test-all")

    def run(kind, sizes, names):
        config = transformers.ElectraConfig(**COMMON, **sizes, attn_implementation="eager")
        model = load_into(kind(config), params, names)
        with torch.no_grad():
            return model(
                torch.tensor(np.asarray(batch["input_ids"])),
                attention_mask=torch.tensor(np.asarray(batch["attention_mask"])).long(),
                token_type_ids=torch.tensor(np.asarray(batch["segment_ids"])),
                output_hidden_states=True,
            )

    encoded = run(transformers.ElectraForPreTraining, SIZES, DISCRIMINATOR)
    generated = run(transformers.ElectraForMaskedLM, SMALL_SIZES, GENERATOR)
    reference = without_padding(
        {
            "hidden_states": torch.stack(encoded.hidden_states[1:]).numpy(),
            "replaced": encoded.logits.numpy(),
            "generated": generated.logits.numpy(),
        }
    )
    for name, expected in reference.items():
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(bertjax_outputs[name], expected, atol=1e-4, rtol=0, err_msg=name)
    golden_parity(f"electra_{scale}", bertjax_outputs, reference)
