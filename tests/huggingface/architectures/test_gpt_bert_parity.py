"""Parity of GPT-BERT and LTG-BERT with PyTorch models of the released array names, to 1e-4.

Weights are random and large; sequences are longer than the longest distance, some are padded.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import config as configs
from bertjax.huggingface import importing
from bertjax.huggingface.model import read_arrays
from bertjax.layers import masks
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint import trees

torch = pytest.importorskip("torch", reason="parity needs torch, of the dependency group test-all")
nn, functional = torch.nn, torch.nn.functional

pytestmark = pytest.mark.slow

V, D, H, F, N, BUCKETS, LONGEST, EPSILON = 290, 12, 3, 20, 2, 4, 6, 1e-5
CONFIG = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": LONGEST,
    "position_bucket_size": BUCKETS,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": EPSILON,
}
LENGTHS = np.array([9, 1, 5])
MASK = np.arange(9) < LENGTHS[:, None]
IDS = np.random.default_rng(0).integers(0, V, MASK.shape)


def plain(width):
    return nn.LayerNorm(width, EPSILON, elementwise_affine=False)


def rows(length):
    """The row of the relative embedding for each query and key: linear, then logarithmic."""
    found, half = torch.zeros(length, length, dtype=torch.long), BUCKETS // 2
    for query, key in np.ndindex(length, length):
        size = min(abs(query - key), LONGEST - 1)
        if size > half:
            share = math.log(size / half) / math.log((LONGEST - 1) / half)
            size = half + math.ceil(share * (half - 1))
        found[query, key] = BUCKETS - 1 + (size if query > key else -size)
    return found


class Attention(nn.Module):
    def __init__(self, interleaved=False):
        super().__init__()
        self.in_proj_qk, self.out_proj = nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.register_buffer("position_indices", rows(LONGEST))
        self.interleaved = interleaved

    def context(self, normal, value, relative, visible):
        at = rows(normal.shape[1])
        query, key = self.in_proj_qk(normal).unflatten(-1, (2, H, -1)).unbind(2)
        near = self.in_proj_qk(relative)
        if self.interleaved:
            near = near.unflatten(-1, (H, 2, -1)).transpose(1, 2)[at]
        else:
            near = near.unflatten(-1, (2, H, -1))[at]
        scores = torch.einsum("bqhk,bmhk->bhqm", query, key)
        scores += torch.einsum("bqhk,qmhk->bhqm", query, near[:, :, 1])
        scores += torch.einsum("bmhk,qmhk->bhqm", key, near[:, :, 0])
        scores = (scores / math.sqrt(3 * D / H)).masked_fill(~visible[:, None], -math.inf)
        shares, value = scores.softmax(-1), value.unflatten(-1, (H, -1))
        return torch.einsum("bhqm,bmhk->bqhk", shares, value).flatten(2)


class GatedAttention(Attention):
    def __init__(self):
        super().__init__()
        self.in_proj_vg = nn.Linear(D, 2 * D)

    def forward(self, x, relative, visible):
        normal = plain(D)(x)
        value, gate = self.in_proj_vg(normal).chunk(2, -1)
        context = self.context(normal, value, relative, visible)
        return self.out_proj(plain(D)(context * functional.gelu(gate)))


class PlainAttention(Attention):
    def __init__(self, interleaved):
        super().__init__(interleaved)
        self.in_proj_v, self.post_layer_norm = nn.Linear(D, D), nn.LayerNorm(D, EPSILON)

    def forward(self, x, relative, visible):
        normal = plain(D)(x)
        context = self.context(normal, self.in_proj_v(normal), relative, visible)
        return self.post_layer_norm(self.out_proj(context))


class GeGLU(nn.Module):
    def forward(self, x):
        value, gate = x.chunk(2, -1)
        return value * functional.gelu(gate, approximate="tanh")


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        wide, narrow = nn.Linear(D, 2 * F, bias=False), nn.Linear(F, D, bias=False)
        self.mlp = nn.Sequential(plain(D), wide, GeGLU(), plain(F), narrow)


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embedding = nn.Embedding(V, D)
        self.relative_embedding = nn.Parameter(torch.zeros(2 * BUCKETS - 1, D))
        self.relative_layer_norm = nn.LayerNorm(D, EPSILON)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        steps = plain(D), nn.Linear(D, D), nn.GELU(), plain(D), nn.Dropout(), nn.Linear(D, V)
        self.nonlinearity = nn.Sequential(*steps)


def add_layers(module):
    module.attention_layers = nn.ModuleList(GatedAttention() for _ in range(N))
    module.mlp_layers = nn.ModuleList(FeedForward() for _ in range(N))
    module.dwa_modules = nn.Module()
    sums = (nn.Parameter(torch.zeros(2 + number)) for number in range(2 * N))
    module.dwa_modules.alphas = nn.ParameterList(sums)


class Layer(nn.Module):
    def __init__(self, interleaved):
        super().__init__()
        self.attention, self.mlp = PlainAttention(interleaved), FeedForward()


def reference(layout, interleaved=False):
    """A module with the names of a layout, and its three parts."""
    whole = nn.Module()
    if layout != "gpt_bert_community":
        whole.embedding, whole.transformer, whole.classifier = Embedding(), nn.Module(), Head()
        if layout == "gpt_bert":
            add_layers(whole.transformer)
        else:
            whole.transformer.layers = nn.ModuleList(Layer(interleaved) for _ in range(N))
        return whole, (whole.embedding, whole.transformer, whole.classifier)
    whole.model, whole.lm_head = nn.Module(), Head()
    whole.model.embedding = Embedding()
    add_layers(whole.model)
    return whole, (whole.model.embedding, whole.model, whole.lm_head)


def hf_logits(parts, visible):
    """Scores at each position; in GPT-BERT, of the token after it."""
    embedding, layers, head = parts
    relative = embedding.relative_layer_norm(embedding.relative_embedding)
    x = plain(D)(embedding.word_embedding(torch.tensor(IDS)))
    if hasattr(layers, "layers"):
        for layer in layers.layers:
            x = x + layer.attention(x, relative, torch.tensor(visible))
            x = x + layer.mlp.mlp(x)
        return head.eval().nonlinearity(x).detach().numpy()
    outputs = [x]
    for number, weights in enumerate(layers.dwa_modules.alphas):
        layer, is_second = divmod(number, 2)
        if is_second:
            x = x + layers.mlp_layers[layer].mlp(x)
        else:
            x = x + layers.attention_layers[layer](x, relative, torch.tensor(visible))
        outputs.append(x)
        x = sum(weight * output for weight, output in zip(weights, outputs, strict=True))
    return head.eval().nonlinearity(x).detach().numpy()


def bertjax_logits(config, tokenizer, params, visible):
    """The scores at each position; in GPT-BERT, those of the next one, without the last."""
    with config.unlocked():
        config.model.precision = "float32"
    module = importing.pretrainer(config, tokenizer)
    batch = {"input_ids": jnp.asarray(IDS), "attention_mask": jnp.asarray(visible)}

    def logits(module, batch):
        encoded = module.encoder(batch, train=False)
        return getattr(module, head).token_logits(module.encoder, encoded)

    (head,) = config.objectives
    variables = {"params": jax.tree.map(jnp.asarray, trees.nest(dict(params)))}
    found = np.asarray(module.apply(variables, batch, method=logits))
    return found[:, 1:] if head == "mntp" else found


def assert_equal_logits(config, tokenizer, params, parts):
    """With bidirectional and with causal attention."""
    causal = np.asarray(masks.bidirectional_or_causal(jnp.ones(len(MASK), bool), jnp.asarray(MASK)))
    for visible in (np.broadcast_to(MASK[:, None], causal.shape), causal):
        found = bertjax_logits(config, tokenizer, params, visible)
        visible = visible | np.eye(MASK.shape[1], dtype=bool)  # padding sees itself, without NaN
        expected = hf_logits(parts, visible)[:, : found.shape[1]]
        where = MASK[:, : found.shape[1]]
        assert np.abs(expected[where]).max() > 1
        np.testing.assert_allclose(found[where], expected[where], atol=1e-4)


@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        ("gpt_bert", {}),
        ("gpt_bert_community", {}),
        ("ltg_bert", {"interleaved_positions": False}),
        ("ltg_bert", {"interleaved_positions": True}),
    ],
)
def test_imported_logits_are_equal(layout, fields, save_gpt_bert, tmp_path):
    whole, parts = reference(layout, *fields.values())
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            center = 1.0 if name.endswith("layer_norm.weight") else 0.0
            weight.copy_(center + 0.4 * torch.randn(weight.shape))
        parts[2].nonlinearity[-1].weight.copy_(parts[0].word_embedding.weight)
    arrays = {name: array.numpy() for name, array in whole.state_dict().items()}
    imported = importing.read(save_gpt_bert(tmp_path / "source", arrays, CONFIG | fields))
    assert imported.config.imported.model_type == layout
    assert_equal_logits(imported.config, imported.tokenizer, imported.params, parts)


@pytest.mark.parametrize(("layout", "recipe"), [("gpt_bert", "tiny"), ("ltg_bert", "tiny,mlm")])
def test_exported_logits_are_equal(
    layout, recipe, gpt_bert_tokenizer, write_random_run, export_run, tmp_path
):
    """The head has a LayerNorm with random scale and bias, which the reference does not have."""
    (tmp_path / "tokenizer.json").write_text(gpt_bert_tokenizer)
    config = configs.load_config(f"configs/gpt_bert.py:{recipe}", [])
    with config.unlocked():
        config.model.update(CONFIG)
    tokenizer = tokenizers.load(tmp_path / "tokenizer.json")
    params = write_random_run(tmp_path / "run", config, tokenizer)
    export_run(tmp_path / "run", tmp_path / "hf")
    whole, parts = reference(layout)
    arrays = read_arrays(tmp_path / "hf")
    whole.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    assert_equal_logits(config, tokenizer, params, parts)
