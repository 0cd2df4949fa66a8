"""Invariants of the trainer with decoders, recurrent depth, ALiBi, DeBERTaV3 and GPT-BERT."""

import contextlib

import jax
import numpy as np
import optax
import pytest

from bertjax.models import (
    deberta,
    gpt2,
    gpt_bert,
    mosaicbert,
    transformer,
    universal_transformer,
)
from bertjax.objectives import causal_lm, generator, mlm, mntp, ponder, rtd, seq2seq
from bertjax.pretrainer import Pretrainer
from bertjax.train.checkpoint.manager import Checkpoints

B, L, V = 8, 12, 36
PAD, SPECIAL = 0, (0, 2, 3)
SIZES = {"vocab_size": V, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PRETRAINERS = {
    "decoder": Pretrainer(
        gpt2.Model(**SIZES, **NO_DROPOUT, num_hidden_layers=2, max_position_embeddings=L),
        {"causal_lm": causal_lm.Objective},
    ),
    "encoder_decoder": Pretrainer(
        transformer.Model(**SIZES, **NO_DROPOUT, num_hidden_layers=2),
        {"seq2seq": lambda: seq2seq.Objective(PAD, SPECIAL)},
    ),
    "recurrent_depth": Pretrainer(
        universal_transformer.Model(**SIZES, **NO_DROPOUT, num_hidden_layers=3),
        {"mlm": lambda: mlm.Objective(4, SPECIAL, V), "ponder": ponder.Objective},
    ),
    "linear_biases": Pretrainer(
        mosaicbert.Model(**SIZES, **NO_DROPOUT, num_hidden_layers=2),
        {"mlm": lambda: mlm.Objective(4, SPECIAL, V)},
    ),
    "replaced_tokens": Pretrainer(
        deberta.Model(
            **SIZES,
            **NO_DROPOUT,
            num_hidden_layers=2,
            max_position_embeddings=L,
            position_buckets=4,
            embedding_sharing="gdes",
        ),
        {
            "generator": lambda: generator.Objective(
                4, SPECIAL, V, size=1.0, depth=0.5, mask_decoder_layers=2
            ),
            "rtd": lambda: rtd.Objective(weight=1.0),
        },
    ),
    "masked_and_causal": Pretrainer(
        gpt_bert.Model(
            **SIZES,
            **NO_DROPOUT,
            num_hidden_layers=2,
            max_position_embeddings=L,
            position_bucket_size=4,
        ),
        {
            "mntp": lambda: mntp.Objective(
                4,
                SPECIAL,
                V,
                causal_share=0.5,
                masked_lm_prob=0.5,
                final_masked_lm_prob=0.1,
                num_train_steps=3,
            )
        },
    ),
}


def batch_of(step):
    generator = np.random.default_rng(step)
    attention_mask = np.arange(L) < generator.integers(L // 2, L + 1, B)[:, None]
    ids = np.where(attention_mask, generator.integers(5, V, (B, L)), PAD).astype(np.int32)
    return {
        "input_ids": ids,
        "attention_mask": attention_mask,
        "target_ids": ids[:, ::-1].copy(),
        "target_mask": attention_mask[:, ::-1].copy(),
        "example_id": np.arange(B, dtype=np.uint32),
    }


@pytest.fixture(scope="module")
def trainer(small_trainer):
    def make(name, **changes):
        return small_trainer(PRETRAINERS[name], optax.sgd(1.0), batch_of(0), **changes)

    return make


@pytest.fixture(scope="module")
def steps(take_steps):
    return lambda made, state, first, last: take_steps(made, batch_of, state, first, last)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINERS)
def test_invariants_of_the_trainer(name, trainer, steps, tmp_path):
    """Accumulation on a mesh gives the same curve, and a restart is bit-identical."""
    made = trainer(name)
    whole, losses = steps(made, made.create_state(), 0, 3)
    assert losses[0] != losses[1]
    spread = trainer(name, microbatches=2, devices=8, data=2, fsdp=2, tensor=2)
    np.testing.assert_allclose(steps(spread, spread.create_state(), 0, 3)[1], losses, rtol=1e-4)
    state, _ = steps(made, made.create_state(), 0, 1)
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(state, step=1)
        checkpoints.wait()
        resumed, _ = checkpoints.resume(made.shapes)
    state, rest = steps(made, resumed, 1, 3)
    assert rest == losses[1:]
    jax.tree.map(np.testing.assert_array_equal, state.params, whole.params)
