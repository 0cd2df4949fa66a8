"""Training steps in JAX, for compare_peers.py: that of bertjax, and one written without it.

The latter is what an experienced user would write in a day: BERT with a masked-language-model head
on gathered positions, dropout by `jax.random.bernoulli`, AdamW of Optax, one jitted step.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from worker import (
    LEARNING_RATE,
    MAX_GRAD_NORM,
    PRECISIONS,
    WEIGHT_DECAY,
    Shape,
    Step,
    random_batch,
    serve,
)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent))

EPSILON = 1e-12


def bertjax_step(shape: Shape) -> tuple[Step, int]:
    """The step of `bertjax pretrain`; that of an MLM samples its masks anew each time."""
    from bertjax import build
    from bertjax.config import load_config
    from bertjax.profiling import dummy
    from bertjax.train.checkpoint import trees
    from bertjax.train.sharding import to_global

    fields = {
        "model.vocab_size": shape.vocab_size,
        "model.num_hidden_layers": shape.layers,
        "model.hidden_size": shape.width,
        "model.num_attention_heads": shape.heads,
        "model.intermediate_size": 4 * shape.width,
        "model.hidden_dropout_prob": shape.dropout,
        "model.attention_probs_dropout_prob": shape.dropout,
        "model.precision": PRECISIONS[shape.precision],
        "data.phases": (),
        "data.microbatches": 1,
        "data.max_seq_length": shape.length,
        "data.batch_size": shape.batch_size,
        "optimizer.learning_rate": LEARNING_RATE,
        "optimizer.weight_decay": WEIGHT_DECAY,
        "optimizer.max_grad_norm": MAX_GRAD_NORM,
    }
    if shape.task == "mlm":
        fields["model.num_pooler_layers"] = 0
        fields["objectives.mlm.max_predictions_per_seq"] = shape.predictions
    config = load_config({"mlm": "roberta:base", "causal_lm": "gpt2:small"}[shape.task], fields)
    (phase,) = build.phases(config)
    mesh = build.make_mesh(config, [phase])
    trainer, rows = dummy.build_trainer(config, phase, mesh)
    batch, state = to_global(rows, mesh), trainer.create_state()

    def step() -> None:
        nonlocal state
        state, metrics = trainer.train_step(state, batch)
        jax.block_until_ready(metrics)

    return step, trees.num_parameters(trainer.shapes.params)


def bare_step(shape: Shape) -> tuple[Step, int]:
    """The step written without bertjax, in float32."""
    batch = jax.tree.map(jnp.asarray, random_batch(shape))
    params = _parameters(shape, np.random.default_rng(0))
    optimizer = optax.chain(
        optax.clip_by_global_norm(MAX_GRAD_NORM),
        optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY),
    )

    def train_step(params, state, key):
        loss, gradient = jax.value_and_grad(_loss)(params, batch, key, shape)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss

    jitted = jax.jit(train_step, donate_argnums=(0, 1))
    state, count = optimizer.init(params), 0
    total = sum(leaf.size for leaf in jax.tree.leaves(params))

    def step() -> None:
        nonlocal params, state, count
        params, state, loss = jitted(params, state, jax.random.key(count))
        count += 1
        jax.block_until_ready(loss)

    return step, total


def _parameters(shape: Shape, random: np.random.Generator):
    """Parameters of embeddings, layers and head; the decoder is the table of words."""
    width = shape.width

    def dense(rows: int, columns: int):
        kernel = random.normal(0, 0.02, (rows, columns)).astype(np.float32)
        return {"kernel": jnp.asarray(kernel), "bias": jnp.zeros(columns)}

    def norm():
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    def table(rows: int):
        return jnp.asarray(random.normal(0, 0.02, (rows, width)).astype(np.float32))

    layers = [
        {
            "qkv": dense(width, 3 * width),
            "output": dense(width, width),
            "attention_norm": norm(),
            "up": dense(width, 4 * width),
            "down": dense(4 * width, width),
            "ffn_norm": norm(),
        }
        for _ in range(shape.layers)
    ]
    return {
        "words": table(shape.vocab_size),
        "positions": table(shape.length),
        "norm": norm(),
        "layers": layers,
        "transform": dense(width, width),
        "transform_norm": norm(),
        "decoder_bias": jnp.zeros(shape.vocab_size),
    }


def _loss(params, batch, key, shape: Shape):
    """Mean cross entropy of the masked tokens, in nats."""
    keys = iter(jax.random.split(key, 1 + 3 * shape.layers))

    def dropout(x):
        kept = jax.random.bernoulli(next(keys), 1 - shape.dropout, x.shape)
        return jnp.where(kept, x / (1 - shape.dropout), 0)

    x = params["words"][batch["tokens"]] + params["positions"]
    x = dropout(_layer_norm(params["norm"], x))
    for layer in params["layers"]:
        attended = _dense(layer["output"], _attention(layer, x, shape, dropout))
        x = _layer_norm(layer["attention_norm"], x + dropout(attended))
        inner = jax.nn.gelu(_dense(layer["up"], x), approximate=False)
        x = _layer_norm(layer["ffn_norm"], x + dropout(_dense(layer["down"], inner)))
    masked = jnp.take_along_axis(x, batch["positions"][..., None], axis=1)
    hidden = jax.nn.gelu(_dense(params["transform"], masked), approximate=False)
    hidden = _layer_norm(params["transform_norm"], hidden)
    logits = hidden @ params["words"].T + params["decoder_bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()


def _attention(layer, x, shape: Shape, dropout):
    batch_size, length, width = x.shape
    split = _dense(layer["qkv"], x).reshape(batch_size, length, 3, shape.heads, -1)
    query, key, value = jnp.moveaxis(split, 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(width // shape.heads)
    weights = dropout(jax.nn.softmax(scores))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch_size, length, width)


def _dense(params, x):
    return x @ params["kernel"] + params["bias"]


def _layer_norm(params, x):
    mean = x.mean(axis=-1, keepdims=True)
    centered = x - mean
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + EPSILON) * params["scale"] + params["bias"]


if __name__ == "__main__":
    from bertjax.runtime import host

    # As `bertjax pretrain` does when it starts; later it has no effect on threads that exist.
    host.keep_freed_memory()
    serve({"bertjax": bertjax_step, "bare_jax": bare_step})
