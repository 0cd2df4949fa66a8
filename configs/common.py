"""What the configs of many runs share, as functions that return fresh sections."""

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
            "precision": "auto",  # bfloat16 on TPU and GPU; on CPU what it multiplies fastest
            "remat": "none",
            "unroll": 0,  # 0: all layers in one piece on CPU, one by one elsewhere
        }
    )


def gpt_model(name: str, size: str, layers: int, width: int, heads: int) -> ConfigDict:
    """GPT's fields in BERT's words, but for vocabulary and positions, which are GPT-2's."""
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
    """The encoder-decoder of Vaswani et al. 2017 in some shape; `layers` are of each side."""
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
    """A tokenizer: one that exists (`path`), or one that is trained on the run's own text."""
    return ConfigDict({"path": "", "kind": kind, "vocab_size": vocab_size, "lowercase": True})


def data(format: str = "segment-pair", pair: str = "next") -> ConfigDict:
    """Text, how it becomes examples, and the size of a batch.

    `corpus` names a prepared corpus. Without it `input` is prepared on the first start and kept in
    `cache`. Held out are `validation_input`, or `validation_fraction` of the documents of `input`.
    """
    return ConfigDict(
        {
            "corpus": "",
            "input": (),
            "text_format": "auto",
            "text_field": "",  # of JSON lines and of tfds:NAME:SPLIT; "text" unless set
            "validation_input": (),
            "validation_fraction": 0.01,
            "cache": "",
            "format": format,
            "pair": pair,
            "max_seq_length": 128,
            "short_seq_prob": None,  # the format's own: 0.1 for segment-pair, else 0
            "batch_size": 256,
            "microbatches": 1,
            # ((steps, length, batch), ...): instead of one length and batch; a fourth number is
            # a phase's own microbatches.
            "phases": (),
        }
    )


def adamw(learning_rate: float, warmup_steps: int) -> ConfigDict:
    """BERT's optimizer (Devlin et al. 2019, appendix A.2)."""
    return ConfigDict(
        {
            "name": "adamw",
            "learning_rate": learning_rate,
            "schedule": "linear",
            "warmup_steps": warmup_steps,
            "end_learning_rate": 0.0,
            "power": 1.0,
            "restarts": (),  # ((rate, warmup), ...): of each of data.phases but the first
            "weight_decay": 0.01,
            "adam_b1": 0.9,
            "adam_b2": 0.999,
            "adam_eps": 1e-6,
            "max_grad_norm": 1.0,
        }
    )


def mesh() -> ConfigDict:
    """All devices along the data axis; `rules` are put before `train/sharding.py`'s own."""
    return ConfigDict(
        {
            "data": -1,
            "fsdp": 1,
            "tensor": 1,
            "sequence": 1,
            "rules": (),
            "shard_optimizer": False,  # its state over the data axis as well, as ZeRO's stage 1
            "grad_reduce_in_bf16": False,  # along the data axis; half of what travels there
            "attention_kernel": "",  # what is best; xla: none; splash (TPU), cudnn (GPU): always
        }
    )


def run(num_train_steps: int) -> dict:
    """How long a run is and how often it reports, evaluates and saves."""
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
        "best_mode": "min",  # or "max", where more is better
        "max_skipped_in_a_row": 5,
        "watchdog_minutes": 20.0,  # without a step, until the stacks of all threads are told
    }


def mlm() -> ConfigDict:
    """BERT's masks: 15% of the tokens; 80% of these hidden, 10% random, 10% as they were."""
    return ConfigDict(
        {
            "weight": 1.0,
            "masked_lm_prob": 0.15,
            "max_predictions_per_seq": 0,
            "mask_share": 0.8,
            "random_share": 0.1,
            "masking": "token",  # or word, ngram, span
            "static": False,
            "hidden_act": "",  # of the head; empty: the model's
        }
    )


def sentence_pair() -> ConfigDict:
    """Next sentence or sentence order, as `data.pair` says."""
    return ConfigDict({"weight": 1.0})


def causal_lm() -> ConfigDict:
    """Every token from those before it; an eighth of the positions at a time."""
    return ConfigDict({"weight": 1.0, "positions_at_once": 0})


def in_seconds(config: ConfigDict) -> ConfigDict:
    """A recipe as a demonstration: on Python's own documentation, over in seconds on a laptop.

    Objectives, masks, examples and optimizer stay the recipe's own.
    """
    config.num_train_steps, config.log_every = 60, 10
    config.eval_every, config.checkpoint_every, config.eval_examples = 30, 30, 128
    config.model.vocab_size = config.tokenizer.vocab_size = 1024
    config.data.input, config.data.phases = ("python-docs",), ()
    config.data.max_seq_length, config.data.batch_size = 64, 16
    config.data.microbatches = min(config.data.microbatches, 2)
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 1e-3, 6
    return config


def in_seconds_after_quickstart(config: ConfigDict) -> ConfigDict:
    """Likewise, for a student of `configs/quickstart.py`: its tokens, and its held-out text."""
    config = in_seconds(config)
    config.model.vocab_size = config.tokenizer.vocab_size = 4096
    config.model.max_position_embeddings = 128
    config.data.validation_fraction = 0.03
    return config


def check_argument(argument: str, known: tuple[str, ...]) -> None:
    """Refuses an argument that a config file does not know.

    Raises:
      UserError: naming the nearest.
    """
    if argument not in known:
        raise UserError(f"no {argument!r}: {nearest(argument, known)}")
