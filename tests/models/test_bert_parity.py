"""Parity with the BERT of transformers, to 1e-4 in float32 (invariant 10)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.huggingface import importing
from bertjax.huggingface.model import HFModel
from bertjax.models.bert import Model
from bertjax.objectives import mlm, sentence_pair
from bertjax.pretrainer import Pretrainer
from bertjax.train.checkpoint.trees import nest

torch = pytest.importorskip("torch", reason="parity needs torch, of the dependency group test-all")
transformers = pytest.importorskip(
    "transformers", reason="parity needs transformers, of the group test-all"
)

pytestmark = pytest.mark.slow

B, L, V, D, N, H, F = 3, 11, 97, 24, 3, 4, 40
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": 17,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


@pytest.fixture(scope="module", params=[1.0, 8.0], ids=["published", "magnified"])
def reference(request):
    """The model of transformers with random weights; a large scale leaves the linear range."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, attn_implementation="eager")
    model = transformers.BertForPreTraining(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            center = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            weight.copy_(center + request.param * 0.05 * torch.randn(weight.shape))
    return model


def bertjax_params(reference):
    """The weights of the reference as parameters of bertjax."""
    weights = {name: value.numpy() for name, value in reference.state_dict().items()}
    released = HFModel.of(reference.config.to_dict(), weights)
    params = importing.parameters(released, importing.run_config(released, "reference"))
    return jax.tree.map(jnp.asarray, nest(params))


def test_hidden_states_pooled_output_and_logits_are_equal(reference):
    generator = np.random.default_rng(0)
    input_ids = generator.integers(0, V, (B, L))
    attention_mask = np.arange(L) < np.array([[L], [5], [8]])
    segment_ids = (np.arange(L) >= np.array([[4], [2], [8]])).astype(np.int64)
    with torch.no_grad():
        expected = reference(
            torch.tensor(input_ids),
            attention_mask=torch.tensor(attention_mask).long(),
            token_type_ids=torch.tensor(segment_ids),
            output_hidden_states=True,
        )
        pooled = reference.bert(
            torch.tensor(input_ids),
            attention_mask=torch.tensor(attention_mask).long(),
            token_type_ids=torch.tensor(segment_ids),
        ).pooler_output

    params = bertjax_params(reference)
    fields = {name: value for name, value in SIZES.items() if name != "type_vocab_size"}
    model = Model(**fields, output_hidden_states=True)
    batch = {
        "input_ids": jnp.asarray(input_ids),
        "attention_mask": jnp.asarray(attention_mask),
        "segment_ids": jnp.asarray(segment_ids),
    }
    encoded = model.apply({"params": params["encoder"]}, batch, train=False)
    assert len(expected.hidden_states) == len(encoded.hidden_states) == N + 1
    for got, states in zip(encoded.hidden_states, expected.hidden_states, strict=True):
        np.testing.assert_allclose(
            np.asarray(got)[attention_mask], states.numpy()[attention_mask], atol=1e-4
        )
    np.testing.assert_allclose(encoded.pooled, pooled.numpy(), atol=1e-4)

    positions = np.tile(np.arange(L), (B, 1))
    labels = generator.integers(0, V, (B, L))
    pair_label = np.array([0, 1, 1])
    objectives = {
        "mlm": lambda: mlm.Objective(mask_id=4, special_ids=(), vocab_size=V),
        "sentence_pair": sentence_pair.Objective,
    }
    losses, _ = Pretrainer(model, objectives).apply(
        {"params": params},
        batch
        | {
            "mlm_positions": jnp.asarray(positions),
            "mlm_labels": jnp.asarray(labels),
            "mlm_weights": jnp.asarray(attention_mask, jnp.float32),
            "pair_label": jnp.asarray(pair_label),
        },
        train=False,
    )
    logits = Pretrainer(model, objectives).apply(
        {"params": params},
        encoded.sequence,
        jnp.asarray(positions),
        method=lambda module, *arrays: module.mlm.logits(module.encoder, *arrays),
    )
    hf_logits = expected.prediction_logits
    np.testing.assert_allclose(
        np.asarray(logits)[attention_mask], hf_logits.numpy()[attention_mask], atol=1e-4
    )
    entropy = torch.nn.functional.cross_entropy
    torch_mask = torch.tensor(attention_mask)
    expected_loss = entropy(
        hf_logits[torch_mask], torch.tensor(labels)[torch_mask], reduction="sum"
    )
    assert losses["mlm"][0] == pytest.approx(float(expected_loss), rel=1e-5)
    assert losses["mlm"][1] == attention_mask.sum()
    pairs = entropy(expected.seq_relationship_logits, torch.tensor(pair_label), reduction="sum")
    assert losses["sentence_pair"][0] == pytest.approx(float(pairs), rel=1e-5)
