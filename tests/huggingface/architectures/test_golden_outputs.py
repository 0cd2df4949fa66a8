"""Parity with golden outputs of transformers, where torch is not installed.

Weights are sampled in the order of their names; `pytest --regolden` computes the arrays anew.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.huggingface import importing
from bertjax.huggingface.model import HFModel
from bertjax.pretrainer import Pretrainer
from bertjax.train.checkpoint.trees import nest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "golden"
V, D = 13, 6
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 10}
BERT = {"vocab_size": V, "hidden_size": D, "max_position_embeddings": 9, **SIZES}
CASES = {
    "BertForPreTraining": BERT,
    "RobertaForMaskedLM": BERT | {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5},
    "DistilBertForMaskedLM": {
        "vocab_size": V,
        "dim": D,
        "n_layers": 2,
        "n_heads": 3,
        "hidden_dim": 10,
        "max_position_embeddings": 9,
    },
}
CASES |= {
    "AlbertForPreTraining": BERT | {"embedding_size": 4},
    "ElectraForPreTraining": BERT | {"embedding_size": 4},
    "ElectraForMaskedLM": BERT | {"embedding_size": 4},
    "XLNetLMHeadModel": {
        "vocab_size": V,
        "d_model": D,
        "n_layer": 2,
        "n_head": 3,
        "d_inner": 10,
    },
}
GPT = {"vocab_size": V, "n_embd": D, "n_layer": 2, "n_head": 3, "n_positions": 9}
CASES |= {"GPT2LMHeadModel": GPT, "OpenAIGPTLMHeadModel": GPT}
CASES["DebertaV2ForMaskedLM"] = BERT | {
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
    "position_buckets": 4,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
INPUT_IDS = np.array([[2, 7, 5, 11, 3], [4, 12, 6, 1, 1]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


def random_arrays(shapes):
    """Random weights of given shapes, identical on any machine."""
    random = np.random.default_rng(0)
    return {
        name: (random.normal(size=shapes[name]) / 2 + is_scale(name)).astype(np.float32)
        for name in sorted(shapes)
    }


def is_scale(name: str) -> bool:
    return "orm.weight" in name or (".ln_" in name and name.endswith("weight"))


def compute_with_transformers(name: str) -> dict:
    """The golden arrays of a case."""
    import torch
    import transformers

    family = name.partition("For")[0].removesuffix("LMHeadModel")
    model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**CASES[name]))
    shapes = {weight: list(value.shape) for weight, value in model.named_parameters()}
    model.load_state_dict(
        {n: torch.tensor(a) for n, a in random_arrays(shapes).items()}, strict=False
    )
    model.tie_weights()
    with torch.no_grad():
        inputs = {"input_ids": torch.tensor(INPUT_IDS), "attention_mask": torch.tensor(MASK).long()}
        out = model.eval()(**inputs)
    logits = out.prediction_logits if "prediction_logits" in out else out.logits
    config = {word: value for word, value in model.config.to_dict().items() if value is not None}
    return {
        "config": {word: config[word] for word in sorted(config) if not word.startswith("_")},
        "shapes": shapes,
        "logits": np.round(logits.numpy()[MASK].astype(float), 5).tolist(),
    }


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name, regolden):
    path = FOLDER / f"huggingface_{name}.json"
    if regolden:
        path.write_text(json.dumps(compute_with_transformers(name), indent=1) + "\n")
    golden = json.loads(path.read_text())
    released = HFModel.of(golden["config"], random_arrays(golden["shapes"]))
    config = importing.run_config(released, name)
    with config.unlocked():
        config.model.precision = "float32"
    params = importing.parameters(released, config)
    batch = {"input_ids": jnp.asarray(INPUT_IDS), "attention_mask": jnp.asarray(MASK)}
    variables = {"params": jax.tree.map(jnp.asarray, nest(params))}
    found = importing.pretrainer(config).apply(variables, batch, method=_logits)
    np.testing.assert_allclose(np.asarray(found)[MASK], golden["logits"], atol=1e-4)


def _logits(module: Pretrainer, batch):
    sequence = module.encoder(batch, train=False).sequence
    if "rtd" in module.objectives:
        return module.rtd.logits(module.encoder, sequence)
    if "permutation_lm" in module.objectives:
        return module.permutation_lm.logits(module.encoder, sequence)
    positions = jnp.broadcast_to(jnp.arange(INPUT_IDS.shape[1]), INPUT_IDS.shape)
    if "causal_lm" in module.objectives:
        return module.causal_lm.logits(module.encoder, sequence)
    return module.mlm.logits(module.encoder, sequence, positions)
