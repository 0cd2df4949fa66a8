"""A small BertForPreTraining with random weights, in a folder as transformers saves it."""

import json
import pathlib

import numpy as np
import safetensors.numpy as library

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
V, D, F, N = len(WORDS), 16, 32, 2
CONFIG = {
    "model_type": "bert",
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": 2,
    "intermediate_size": F,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}


def norm(name):
    return {f"{name}.LayerNorm.weight": (D,), f"{name}.LayerNorm.bias": (D,)}


def linear(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def shapes():
    """Shapes of all arrays of BertForPreTraining."""
    found = {
        "bert.embeddings.word_embeddings.weight": (V, D),
        "bert.embeddings.position_embeddings.weight": (24, D),
        "bert.embeddings.token_type_embeddings.weight": (2, D),
        **norm("bert.embeddings"),
        **linear("bert.pooler.dense", D, D),
        **linear("cls.predictions.transform.dense", D, D),
        **norm("cls.predictions.transform"),
        "cls.predictions.bias": (V,),
        **linear("cls.seq_relationship", D, 2),
    }
    for layer in (f"bert.encoder.layer.{number}" for number in range(N)):
        for name in ("query", "key", "value"):
            found |= linear(f"{layer}.attention.self.{name}", D, D)
        found |= linear(f"{layer}.attention.output.dense", D, D) | norm(f"{layer}.attention.output")
        found |= linear(f"{layer}.intermediate.dense", D, F)
        found |= linear(f"{layer}.output.dense", F, D) | norm(f"{layer}.output")
    return found


def save(
    folder: pathlib.Path, arrays: dict | None = None, without: tuple = (), **config
) -> pathlib.Path:
    """Writes the folder: weights, config and vocabulary.

    Args:
      folder: New folder.
      arrays: Arrays that replace the random ones, or are added.
      without: Prefixes of the names of arrays that are left out.
      **config: Fields of `config.json` that differ.
    """
    random = np.random.default_rng(0)
    made = {
        name: random.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in sorted(shapes().items())
        if not name.startswith(without)
    }
    folder.mkdir(parents=True)
    library.save_file(made | (arrays or {}), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "vocab.txt").write_text("\n".join([*WORDS, ""]))
    return folder
