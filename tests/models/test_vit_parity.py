"""Parity with the ViT of transformers, to 1e-4 in float32 (invariant 10)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.vit import Model

torch = pytest.importorskip("torch", reason="parity needs torch, of the dependency group test-all")
transformers = pytest.importorskip(
    "transformers", reason="parity needs transformers, of the group test-all"
)

pytestmark = pytest.mark.slow

B, D, N, H, F = 3, 24, 3, 4, 40
SIZES = {
    "image_size": 15,
    "patch_size": 5,
    "num_channels": 2,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


@pytest.fixture(scope="module", params=[1.0, 8.0], ids=["published", "magnified"])
def reference(request):
    """The model of transformers with random weights; a large scale leaves the linear range."""
    torch.manual_seed(0)
    model = transformers.ViTModel(transformers.ViTConfig(**SIZES, attn_implementation="eager"))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            center = 1.0 if "layernorm" in name and name.endswith("weight") else 0.0
            weight.copy_(center + request.param * 0.05 * torch.randn(weight.shape))
    return model.eval()


def bertjax_params(reference):
    """The weights of the reference as parameters of bertjax."""
    weights = {name: value.numpy() for name, value in reference.state_dict().items()}

    def linear(name, *shape):
        kernel = weights.pop(f"{name}.weight").T
        return {
            "kernel": kernel.reshape(shape or kernel.shape),
            "bias": weights.pop(f"{name}.bias").reshape(shape[1:] or -1),
        }

    def norm(name):
        return {"scale": weights.pop(f"{name}.weight"), "bias": weights.pop(f"{name}.bias")}

    def block(n):
        layer = LAYER.format(n)
        attention = {
            part: linear(f"{layer}.{ATTENTION[part]}", D, H, D // H)
            for part in ("query", "key", "value")
        }
        output = linear(f"{layer}.{ATTENTION['output']}")
        output["kernel"] = output["kernel"].reshape(H, D // H, D)
        return {
            "attention": attention | {"output": output},
            "attention_norm": norm(f"{layer}.layernorm_before"),
            "feed_forward": {
                "intermediate": linear(f"{layer}.{FEED_FORWARD[0]}"),
                "output": linear(f"{layer}.{FEED_FORWARD[1]}"),
            },
            "feed_forward_norm": norm(f"{layer}.layernorm_after"),
        }

    patches = weights.pop("embeddings.patch_embeddings.projection.weight").transpose(2, 3, 1, 0)
    params = {
        "cls": weights.pop("embeddings.cls_token"),
        "positions": weights.pop("embeddings.position_embeddings")[0],
        "patches": {
            "kernel": patches.reshape(-1, D),
            "bias": weights.pop("embeddings.patch_embeddings.projection.bias"),
        },
        "layers": {"block": jax.tree.map(lambda *n: np.stack(n), *map(block, range(N)))},
        "norm": norm("layernorm"),
        "pooler": {"dense": linear("pooler.dense")},
    }
    assert not weights, weights.keys()
    return jax.tree.map(jnp.asarray, params)


LAYER = "layers.{}"
ATTENTION = {
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "output": "attention.o_proj",
}
FEED_FORWARD = ("mlp.fc1", "mlp.fc2")


def test_sequence_and_pooled_output_are_equal(reference):
    images = np.random.default_rng(0).normal(size=(B, 15, 15, 2)).astype(np.float32)
    with torch.no_grad():
        expected = reference(torch.tensor(images.transpose(0, 3, 1, 2)))
    model = Model(**SIZES, num_pooler_layers=1)
    encoded = jax.jit(lambda params, batch: model.apply({"params": params}, batch, train=False))(
        bertjax_params(reference), {"pixel_values": jnp.asarray(images)}
    )
    np.testing.assert_allclose(encoded.sequence, expected.last_hidden_state, atol=1e-4)
    np.testing.assert_allclose(encoded.pooled, expected.pooler_output, atol=1e-4)
