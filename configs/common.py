"""Config sections shared by many configs, as functions that return a new section each."""

from collections.abc import Sequence
from typing import Literal

from ml_collections import ConfigDict

from bertjax.errors import UserError, nearest

SIZES = {
    # Layers, width, heads (Devlin et al. 2019; Turc et al. 2019 for the small ones).
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


def bert_model(size: str) -> ConfigDict:
    """The published fields of `bert_config.json` for a size of BERT."""
    layers, width, heads = SIZES[size]
    return ConfigDict(
        {
            "name": "bert",
            "size": size,
            "vocab_size": 30522,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
            "initializer_range": 0.02,
            "position_initializer": "normal",
            "position_offset": 0,
            "layer_norm_eps": 1e-12,
            "precision": "auto",  # bfloat16 on TPU and GPU; on CPU the faster type for matmuls
            "remat": "none",
            "unroll": 0,  # 0: unroll the loop over layers on CPU, scan elsewhere
        }
    )


def gpt_model(name: str, size: str, layers: int, width: int, heads: int) -> ConfigDict:
    """GPT's fields, named as BERT's, with the vocabulary and positions of GPT-2."""
    model = bert_model("base")
    for absent in ("type_vocab_size", "position_offset"):
        del model[absent]
    model.update(
        name=name,
        size=size,
        vocab_size=50257,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        hidden_act="gelu_new",
        embd_pdrop=None,  # the same as hidden_dropout_prob
        max_position_embeddings=1024,
        layer_norm_eps=1e-5,
    )
    return model


def transformer_model(size: str, layers: int, width: int, heads: int) -> ConfigDict:
    """The encoder-decoder of Vaswani et al. 2017, with `layers` each in encoder and decoder."""
    return ConfigDict(
        {
            "name": "transformer",
            "size": size,
            "vocab_size": 32_000,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
            "hidden_act": "relu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": width**-0.5,
            "layer_norm_eps": 1e-6,
            "precision": "auto",
            "remat": "none",
            "unroll": 0,
        }
    )


def tokenizer(kind: str = "wordpiece", vocab_size: int = 30522) -> ConfigDict:
    """The tokenizer: a pretrained one (`path`), or one trained on the text of the run."""
    return ConfigDict({"path": "", "kind": kind, "vocab_size": vocab_size, "lowercase": True})


def data(format: str = "segment-pair", pair: str = "next") -> ConfigDict:
    """Text, example format and batch size.

    `corpus` is the folder of a prepared corpus. Without it, `input` is prepared on the first start
    and stored in `cache`. Held-out text is `validation_input`, or the share `validation_fraction`
    of the documents of `input`.
    """
    return ConfigDict(
        {
            "corpus": "",
            "input": (),
            "text_format": "auto",
            "text_field": "",  # field of JSON lines, column of a table; empty: "text"
            "filters": (),  # "gopher", "duplicates", "min_characters=200" ...
            # ((NAME, PATH of a corpus, share of tokens), ...), in place of corpus and input. The
            # share may be a tuple, one for each phase; without shares it is that of all tokens.
            "mixture": (),
            "mixture_temperature": None,  # above 1: more of the small corpora
            "validation_input": (),
            "validation_fraction": 0.01,
            "cache": "",
            "format": format,
            "pair": pair,
            "max_seq_length": 128,
            "short_seq_prob": None,  # None: 0.1 for segment-pair, else 0
            "batch_size": 256,
            "microbatches": 1,
            # ((steps, length, batch), ...), in place of max_seq_length and batch_size; the fourth
            # number of a phase, if any, is its number of microbatches.
            "phases": (),
        }
    )


def batch_size_warmup(
    num_train_steps: int,
    length: int,
    batch_sizes: Sequence[int],
    tokens: float,
    equal: Literal["steps", "tokens"] = "steps",
) -> tuple[tuple[int, int, int], ...]:
    """Phases of growing batch size, for `config.data.phases`; all share one learning rate schedule.

    ModernBERT's (Warner et al. 2024, section 2.2) are `batch_size_warmup(STEPS, 1024, range(768,
    4608 + 1, 768), 50e9)`: small batches, of which more steps fit into the first tokens.

    Args:
      num_train_steps: Steps of the run.
      length: Tokens of a sequence.
      batch_sizes: In order.
      tokens: Of the warmup; the rest of the run has the last batch size.
      equal: What all batch sizes but the last have equally many of. With "tokens" the batch size
        grows linearly with time.

    Raises:
      UserError: the warmup is longer than the run.
    """
    *growing, last = batch_sizes
    parts = [size if equal == "steps" else 1 for size in growing]
    phases = [
        (max(round(tokens * part / sum(parts) / (size * length)), 1), length, size)
        for part, size in zip(parts, growing, strict=True)
    ]
    taken = sum(steps for steps, _, _ in phases)
    if taken >= num_train_steps:
        raise UserError(
            f"batch_size_warmup: got {taken} steps in batches smaller than {last}, expected fewer "
            f"than num_train_steps={num_train_steps}; lower tokens"
        )
    return (*phases, (num_train_steps - taken, length, last))


def adamw(learning_rate: float, warmup_steps: int) -> ConfigDict:
    """BERT's optimizer (Devlin et al. 2019, appendix A.2).

    The moments have a bias correction, as in the paper of Adam and in RoBERTa; the released code of
    BERT, ALBERT, ELECTRA and XLNet has none, so that its first thousand updates are larger. A decay
    begins after the warmup; in the code of BERT and ALBERT it begins with the run.
    """
    return ConfigDict(
        {
            "name": "adamw",
            "learning_rate": learning_rate,
            "schedule": "linear",
            "warmup_steps": warmup_steps,
            "end_learning_rate": 0.0,
            "power": 1.0,
            "restarts": (),  # ((learning rate, warmup steps), ...) of data.phases[1:]
            "weight_decay": 0.01,
            "adam_b1": 0.9,
            "adam_b2": 0.999,
            "adam_eps": 1e-6,
            "max_grad_norm": 1.0,
        }
    )


def mesh() -> ConfigDict:
    """All devices along the data axis; `rules` override those of `train/sharding.py`."""
    return ConfigDict(
        {
            "data": -1,
            "fsdp": 1,
            "tensor": 1,
            "sequence": 1,
            "rules": (),
            "shard_optimizer": False,  # shard its state over the data axis: ZeRO, stage 1
            "grad_reduce_in_bf16": False,  # halves the bytes of the all-reduce over the data axis
            "attention_kernel": "",  # empty: automatic; xla: none; TPU: splash, pallas; GPU: cudnn
        }
    )


def run(num_train_steps: int) -> dict:
    """Length of a run and the intervals of logging, evaluation and checkpoints."""
    return {
        "seed": 0,
        "num_train_steps": num_train_steps,
        "log_every": 100,
        "eval_every": 5000,
        "eval_examples": 10000,
        "checkpoint_every": 5000,
        "keep_checkpoints": 3,
        "keep_best": 1,
        "best_metric": "held_out/mlm/loss",
        "best_mode": "min",  # or "max", if higher is better
        "max_skipped_in_a_row": 5,
        "watchdog_minutes": 20.0,  # without a step, until the stacks of all threads are printed
    }


def mlm() -> ConfigDict:
    """BERT's masks: 15% of the tokens, of which 80% [MASK], 10% random, 10% unchanged."""
    return ConfigDict(
        {
            "weight": 1.0,
            "masked_lm_prob": 0.15,
            "max_predictions_per_seq": 0,
            "mask_share": 0.8,
            "random_share": 0.1,
            "masking": "token",  # or word, ngram, span
            "static": False,
            "hidden_act": "",  # of the head; empty: that of the model
        }
    )


def sentence_pair() -> ConfigDict:
    """Next sentence prediction or sentence order prediction, depending on `data.pair`."""
    return ConfigDict({"weight": 1.0})


def causal_lm() -> ConfigDict:
    """Causal language model; logits are computed for an eighth of the positions at a time."""
    return ConfigDict({"weight": 1.0, "positions_at_once": 0})


def shrink_to_demo(config: ConfigDict) -> ConfigDict:
    """Shrinks a recipe to a demonstration: seconds on a laptop, on Python's documentation.

    Objectives, masks, example format and optimizer are unchanged.
    """
    config.num_train_steps, config.log_every = 60, 10
    config.eval_every, config.checkpoint_every, config.eval_examples = 30, 30, 128
    config.model.vocab_size = config.tokenizer.vocab_size = 1024
    config.data.input, config.data.phases = ("python-docs",), ()
    config.data.max_seq_length, config.data.batch_size = 64, 16
    config.data.microbatches = min(config.data.microbatches, 2)
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 1e-3, 6
    return config


def shrink_to_demo_student(config: ConfigDict) -> ConfigDict:
    """Like `shrink_to_demo`, with the vocabulary and held-out text of `configs/quickstart.py`."""
    config = shrink_to_demo(config)
    config.model.vocab_size = config.tokenizer.vocab_size = 4096
    config.model.max_position_embeddings = 128
    config.data.validation_fraction = 0.03
    return config


def check_argument(argument: str, known: tuple[str, ...]) -> None:
    """Checks the argument of a config file.

    Raises:
      UserError: Unknown argument; the message has the nearest known one.
    """
    if argument not in known:
        raise UserError(f"unknown config argument {argument!r}: {nearest(argument, known)}")
