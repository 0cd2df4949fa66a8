"""Parity with the ALBERT of transformers, to 1e-4 in float32 (invariant 10)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.albert import Model
from bertjax.objectives import mlm, sentence_pair
from bertjax.pretrainer import Pretrainer

L, V, E, D, N, H, F = 11, 97, 7, 24, 3, 4, 40
SIZES = {
    "vocab_size": V,
    "embedding_size": E,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": L,
    "type_vocab_size": 2,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-12,
}
BLOCK = "albert.encoder.albert_layer_groups.0.albert_layers.0"
NAMES = {
    "encoder/word_embeddings/embedding": "albert.embeddings.word_embeddings.weight",
    "encoder/position_embeddings/embedding": "albert.embeddings.position_embeddings.weight",
    "encoder/segment_embeddings/embedding": "albert.embeddings.token_type_embeddings.weight",
    "encoder/embeddings/norm": "albert.embeddings.LayerNorm",
    "encoder/embedding_projection": "albert.encoder.embedding_hidden_mapping_in",
    "encoder/layers/shared/attention/query": f"{BLOCK}.attention.query",
    "encoder/layers/shared/attention/key": f"{BLOCK}.attention.key",
    "encoder/layers/shared/attention/value": f"{BLOCK}.attention.value",
    "encoder/layers/shared/attention/output": f"{BLOCK}.attention.dense",
    "encoder/layers/shared/attention_norm": f"{BLOCK}.attention.LayerNorm",
    "encoder/layers/shared/feed_forward/intermediate": f"{BLOCK}.ffn",
    "encoder/layers/shared/feed_forward/output": f"{BLOCK}.ffn_output",
    "encoder/layers/shared/feed_forward_norm": f"{BLOCK}.full_layer_layer_norm",
    "encoder/pooler/dense": "albert.pooler",
    "mlm/transform/dense": "predictions.dense",
    "mlm/transform/norm": "predictions.LayerNorm",
    "mlm/bias": "predictions.bias",
    "sentence_pair/classifier/dense": "sop_classifier.classifier",
}
PRETRAINER = Pretrainer(
    Model(**SIZES, output_hidden_states=True),
    {
        "mlm": lambda: mlm.Objective(mask_id=4, special_ids=(), vocab_size=V),
        "sentence_pair": sentence_pair.Objective,
    },
)
LENGTHS = {"padded": (L, 5, 8), "one token": (1,), "full": (L, L)}


def batch_of(case):
    lengths, generator = np.array(LENGTHS[case]), np.random.default_rng(0)
    attention_mask = np.arange(lengths.max()) < lengths[:, None]
    return {
        "input_ids": jnp.asarray(generator.integers(0, V, attention_mask.shape)),
        "attention_mask": jnp.asarray(attention_mask),
        "segment_ids": jnp.asarray(
            (np.arange(attention_mask.shape[1]) > 2) & attention_mask, jnp.int32
        ),
        "mlm_positions": jnp.asarray(
            np.tile(np.arange(attention_mask.shape[1]), (len(lengths), 1))
        ),
        "mlm_labels": jnp.asarray(generator.integers(0, V, attention_mask.shape)),
        "mlm_weights": jnp.asarray(attention_mask, jnp.float32),
        "pair_label": jnp.asarray(generator.integers(0, 2, len(lengths))),
    }


@jax.jit
def outputs(variables, batch):
    def method(module, batch):
        encoded = module.encoder(batch, train=False)
        logits = module.mlm.logits(module.encoder, encoded.sequence, batch["mlm_positions"])
        states = {f"hidden_states_{i}": state for i, state in enumerate(encoded.hidden_states)}
        pair_loss, _, _ = module.sentence_pair.loss(module.encoder, encoded, batch, train=False)
        return states | {"pooled": encoded.pooled, "logits": logits, "pair_loss": pair_loss}

    return PRETRAINER.apply(variables, batch, method=method)


def without_padding(batch, arrays):
    """Outputs of tokens and texts, without padding."""
    attention_mask = np.asarray(batch["attention_mask"])
    return {
        k: np.asarray(v)[attention_mask] if v.ndim == 3 else np.asarray(v)
        for k, v in arrays.items()
    }


def reference(hf_arrays, batch):
    torch = pytest.importorskip(
        "torch", reason="parity needs torch, of the dependency group test-all"
    )
    transformers = pytest.importorskip("transformers", reason="parity needs the group test-all")
    config = transformers.AlbertConfig(**SIZES, attn_implementation="eager")
    model = transformers.AlbertForPreTraining(config).eval()
    state = {name: torch.tensor(value) for name, value in hf_arrays.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"predictions.decoder.weight", "predictions.decoder.bias"}
    names = {"attention_mask": "attention_mask", "token_type_ids": "segment_ids"}
    inputs = {k: torch.tensor(np.asarray(batch[name])).long() for k, name in names.items()}
    ids = torch.tensor(np.asarray(batch["input_ids"]))
    with torch.no_grad():
        out = model(ids, **inputs, output_hidden_states=True)
        pooled = model.albert(ids, **inputs).pooler_output
        label = torch.tensor(np.asarray(batch["pair_label"])).long()
        pair_loss = torch.nn.functional.cross_entropy(out.sop_logits, label, reduction="sum")
    assert len(out.hidden_states) == N + 1
    states = {f"hidden_states_{i}": state.numpy() for i, state in enumerate(out.hidden_states)}
    heads = {"logits": out.prediction_logits.numpy(), "pair_loss": pair_loss.numpy()}
    return states | {"pooled": pooled.numpy()} | heads


@pytest.mark.slow
@pytest.mark.parametrize("magnify", [1.0, 8.0], ids=["published", "magnified"])
@pytest.mark.parametrize("case", LENGTHS)
def test_outputs_are_equal(case, magnify, parity):
    batch = batch_of(case)
    variables, hf_arrays = parity(PRETRAINER, batch, NAMES, magnify)
    expected = without_padding(batch, reference(hf_arrays, batch))
    got = without_padding(batch, outputs(variables, batch))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-4, err_msg=name)


def test_golden_outputs(parity, golden_parity, regolden):
    batch = batch_of("padded")
    variables, hf_arrays = parity(PRETRAINER, batch, NAMES, 8.0)

    def select_outputs(arrays):
        arrays = without_padding(batch, arrays)
        return {name: arrays[name][:, :4] for name in (f"hidden_states_{N}", "pooled", "logits")}

    expected = select_outputs(reference(hf_arrays, batch)) if regolden else None
    golden_parity("albert", select_outputs(outputs(variables, batch)), expected)
