"""Parity with the RoBERTa of transformers, to 1e-4 in float32 (invariant 10)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.bert import Model
from bertjax.objectives import mlm
from bertjax.pretrainer import Pretrainer

L, V, D, N, H, F = 11, 97, 24, 3, 4, 40
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": L + 2,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
BLOCK = "roberta.encoder.layer.*"
NAMES = {
    "encoder/word_embeddings/embedding": "roberta.embeddings.word_embeddings.weight",
    "encoder/position_embeddings/embedding": "roberta.embeddings.position_embeddings.weight",
    "encoder/segment_embeddings/embedding": "roberta.embeddings.token_type_embeddings.weight",
    "encoder/embeddings/norm": "roberta.embeddings.LayerNorm",
    "encoder/layers/block/attention/query": f"{BLOCK}.attention.self.query",
    "encoder/layers/block/attention/key": f"{BLOCK}.attention.self.key",
    "encoder/layers/block/attention/value": f"{BLOCK}.attention.self.value",
    "encoder/layers/block/attention/output": f"{BLOCK}.attention.output.dense",
    "encoder/layers/block/attention_norm": f"{BLOCK}.attention.output.LayerNorm",
    "encoder/layers/block/feed_forward/intermediate": f"{BLOCK}.intermediate.dense",
    "encoder/layers/block/feed_forward/output": f"{BLOCK}.output.dense",
    "encoder/layers/block/feed_forward_norm": f"{BLOCK}.output.LayerNorm",
    "encoder/pooler/dense": "roberta.pooler.dense",
    "mlm/transform/dense": "lm_head.dense",
    "mlm/transform/norm": "lm_head.layer_norm",
    "mlm/bias": "lm_head.bias",
}
PAD = 1
PRETRAINER = Pretrainer(
    Model(**SIZES, position_offset=2),
    {"mlm": lambda: mlm.Objective(mask_id=V - 1, special_ids=(0, PAD, 2, 3, V - 1), vocab_size=V)},
)
LENGTHS = {"padded": (L, 5, 8), "one token": (1,), "full": (L, L)}


def batch_of(case):
    """Texts of given lengths; transformers detects padding by its id, so no other token has it."""
    lengths = np.array(LENGTHS[case])
    attention_mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.random.default_rng(0).integers(PAD + 1, V, attention_mask.shape)
    return {
        "input_ids": jnp.asarray(np.where(attention_mask, ids, PAD)),
        "attention_mask": jnp.asarray(attention_mask),
        # Unknown segment ids are treated as the only one of the model.
        "segment_ids": jnp.asarray(
            (np.arange(attention_mask.shape[1]) > 2) & attention_mask, jnp.int32
        ),
        "mlm_positions": jnp.asarray(
            np.tile(np.arange(attention_mask.shape[1]), (len(lengths), 1))
        ),
        "mlm_labels": jnp.asarray(ids),
        "mlm_weights": jnp.asarray(attention_mask, jnp.float32),
    }


@jax.jit
def outputs(variables, batch):
    def method(module, batch):
        encoded = module.encoder(batch, train=False)
        logits = module.mlm.logits(module.encoder, encoded.sequence, batch["mlm_positions"])
        return {"sequence": encoded.sequence, "pooled": encoded.pooled, "logits": logits}

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
    config = transformers.RobertaConfig(
        **SIZES, hidden_act="gelu", pad_token_id=PAD, attn_implementation="eager"
    )
    model = transformers.RobertaForMaskedLM(config)
    model.roberta = transformers.RobertaModel(config)
    model.tie_weights()
    state = {name: torch.tensor(value) for name, value in hf_arrays.items()}
    missing, unexpected = model.eval().load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.decoder.weight", "lm_head.decoder.bias"}
    ids, mask = (torch.tensor(np.asarray(batch[k])).long() for k in ("input_ids", "attention_mask"))
    with torch.no_grad():
        encoded = model.roberta(ids, attention_mask=mask)
        sequence, pooled = encoded.last_hidden_state, encoded.pooler_output
        logits = model.lm_head(sequence)
    return {"sequence": sequence.numpy(), "pooled": pooled.numpy(), "logits": logits.numpy()}


@pytest.mark.slow
@pytest.mark.parametrize("magnify", [1.0, 8.0], ids=["published", "magnified"])
@pytest.mark.parametrize("case", LENGTHS)
def test_outputs_are_equal(case, magnify, parity):
    batch = batch_of(case)
    variables, hf_arrays = parity(PRETRAINER, batch, NAMES, magnify)
    expected = without_padding(batch, reference(hf_arrays, batch))
    got = without_padding(batch, outputs(variables, batch))
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-4, err_msg=name)


def test_golden_outputs(parity, golden_parity, regolden):
    batch = batch_of("padded")
    variables, hf_arrays = parity(PRETRAINER, batch, NAMES, 8.0)

    def select_outputs(arrays):
        return {name: value[:, :4] for name, value in without_padding(batch, arrays).items()}

    expected = select_outputs(reference(hf_arrays, batch)) if regolden else None
    golden_parity("roberta", select_outputs(outputs(variables, batch)), expected)
