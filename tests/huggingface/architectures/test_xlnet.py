"""Parity of XLNet's query stream with transformers; other outputs are in `test_parity.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.huggingface import importing
from bertjax.huggingface.model import HFModel
from bertjax.train.checkpoint.trees import nest

torch = pytest.importorskip("torch", reason="parity needs torch, of the dependency group test-all")
transformers = pytest.importorskip(
    "transformers", reason="parity needs transformers, of the group test-all"
)

pytestmark = pytest.mark.slow

V = 31


def test_the_query_stream_is_equal():
    """XLNet's learned mask embedding is used only there; every token is predicted."""
    config = transformers.XLNetConfig(
        vocab_size=V, d_model=24, n_layer=3, n_head=4, d_inner=40, clamp_len=5, mem_len=3
    )
    torch.manual_seed(0)
    model = transformers.XLNetLMHeadModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_scale = "norm" in name.lower() and name.endswith("weight")
            weight.copy_(float(is_scale) + 0.5 * torch.randn(weight.shape))
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    released = HFModel.of(model.config.to_dict(), weights)
    config = importing.run_config(released, "reference")
    with config.unlocked():
        config.model.precision = "float32"
    params = importing.parameters(released, config)
    random = np.random.default_rng(0)
    input_ids, order = random.integers(5, V, (2, 7)), random.permuted([range(7)] * 2, axis=1)
    hidden = order[:, None, :] >= order[:, :, None]
    with torch.no_grad():
        expected = model(
            torch.tensor(input_ids),
            perm_mask=torch.tensor(hidden).float(),
            target_mapping=torch.eye(7).expand(2, 7, 7),
        ).logits.numpy()

    def queries(module, batch):
        encoded = module.encoder(batch, train=False)
        return module.permutation_lm.logits(module.encoder, encoded.queries)

    batch = {
        "input_ids": jnp.asarray(input_ids),
        "attention_mask": jnp.ones((2, 7), bool),
        "prediction_order": jnp.asarray(order),
        "mlm_positions": jnp.tile(jnp.arange(7), (2, 1)),
    }
    variables = {"params": jax.tree.map(jnp.asarray, nest(params))}
    found = importing.pretrainer(config).apply(variables, batch, method=queries)
    # The first predicted token has no visible key: transformers attends uniformly, bertjax not.
    later = order > 0
    np.testing.assert_allclose(np.asarray(found)[later], expected[later], atol=1e-4)
