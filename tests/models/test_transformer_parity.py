"""Parity with torch.nn.Transformer, to 1e-5 in float32 (invariant 10)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.embeddings import sinusoids
from bertjax.models.transformer import Model

torch = pytest.importorskip("torch", reason="parity needs torch, of the dependency group test-all")

pytestmark = pytest.mark.slow

B, L, T, V, D, N, H, F = 3, 11, 7, 97, 24, 3, 4, 40
ATTENTIONS = {"encoder": {"attention": "self_attn"}}
ATTENTIONS["decoder"] = {"attention": "self_attn", "cross_attention": "multihead_attn"}
NORMS = {"encoder": ("attention_norm", "feed_forward_norm")}
NORMS["decoder"] = ("attention_norm", "cross_attention_norm", "feed_forward_norm")


@pytest.fixture(scope="module", params=[1.0, 4.0], ids=["as_made", "magnified"])
def reference(request):
    """The model of torch without the LayerNorms that it adds after the last layers."""
    torch.manual_seed(0)
    model = torch.nn.Transformer(D, H, N, N, F, batch_first=True, layer_norm_eps=1e-6).eval()
    model.encoder.use_nested_tensor = False  # a prototype, which warns
    model.encoder.norm = model.decoder.norm = None
    with torch.no_grad():
        for name, weight in model.named_parameters():
            center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            weight.copy_(center + request.param * 0.05 * torch.randn(weight.shape))
    return model


@pytest.fixture(scope="module")
def variables(reference):
    table = np.random.default_rng(0).normal(0, D**-0.5, (V, D)).astype(np.float32)
    weights = {name: value.numpy() for name, value in reference.state_dict().items()}
    params = {"word_embeddings": {"embedding": jnp.asarray(table)}}
    for side, name in (("encoder", "layers"), ("decoder", "decoder_layers")):
        layers = [_layer(weights, side, f"{side}.layers.{i}") for i in range(N)]
        block = {
            part: {name: _stacked(layers, part, name) for name in layers[0][part]}
            for part in layers[0]
        }
        params[name] = {"block": block}
    return {"params": params}


def _stacked(layers, part, name):
    if isinstance(layers[0][part][name], dict):
        return {
            leaf: jnp.asarray(np.stack([layer[part][name][leaf] for layer in layers]))
            for leaf in layers[0][part][name]
        }
    return jnp.asarray(np.stack([layer[part][name] for layer in layers]))


def _layer(weights, side, prefix):
    params = {}
    for bertjax_name, torch_name in ATTENTIONS[side].items():
        kernels = weights[f"{prefix}.{torch_name}.in_proj_weight"].reshape(3, H, D // H, D)
        biases = weights[f"{prefix}.{torch_name}.in_proj_bias"].reshape(3, H, D // H)
        params[bertjax_name] = {
            name: {"kernel": kernel.transpose(2, 0, 1), "bias": bias}
            for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True)
        }
        output = weights[f"{prefix}.{torch_name}.out_proj.weight"].T.reshape(H, D // H, D)
        params[bertjax_name]["output"] = {
            "kernel": output,
            "bias": weights[f"{prefix}.{torch_name}.out_proj.bias"],
        }
    names = (("intermediate", "linear1"), ("output", "linear2"))
    params["feed_forward"] = {
        bertjax_name: {
            "kernel": weights[f"{prefix}.{torch_name}.weight"].T,
            "bias": weights[f"{prefix}.{torch_name}.bias"],
        }
        for bertjax_name, torch_name in names
    }
    for number, bertjax_name in enumerate(NORMS[side], start=1):
        params[bertjax_name] = {
            "scale": weights[f"{prefix}.norm{number}.weight"],
            "bias": weights[f"{prefix}.norm{number}.bias"],
        }
    return params


def test_encoder_and_decoder_are_equal(reference, variables):
    generator = np.random.default_rng(1)
    source, target = (generator.integers(0, V, (B, length)) for length in (L, T))
    attention_mask = np.arange(L) < np.array([[L], [1], [8]])
    batch = {"input_ids": source, "attention_mask": attention_mask, "decoder_input_ids": target}
    batch = jax.tree.map(jnp.asarray, batch)
    encoded = Model(V, D, N, H, F).apply(variables, batch, train=False)
    table = np.asarray(variables["params"]["word_embeddings"]["embedding"])

    def embedded(ids):
        return torch.tensor(table[ids] * D**0.5 + sinusoids(ids.shape[1], D))

    with torch.no_grad():
        padding = torch.tensor(~attention_mask)
        memory = reference.encoder(embedded(source), src_key_padding_mask=padding)
        decoded = reference(
            embedded(source),
            embedded(target),
            tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(T),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
    np.testing.assert_allclose(
        encoded.sequence[attention_mask], memory.numpy()[attention_mask], atol=1e-5
    )
    np.testing.assert_allclose(encoded.decoded, decoded.numpy(), atol=1e-5)
