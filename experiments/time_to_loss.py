"""Question: how long bertjax and PyTorch train the same BERT-mini to the same held-out loss.

    bertjax prepare --input 'enwiki/*.gz' --validation_input 'enwiki_heldout/*.gz' \
        --tokenizer vocab/bert-base-uncased --output corpora/enwiki
    python experiments/time_to_loss.py --corpus corpora/enwiki --tokenizer vocab/bert-base-uncased \
        --seconds 1800 --workdir runs/time_to_loss --output experiments/speed/time_to_loss.json

All runs start from the same parameters: PyTorch and bertjax for --seconds, and bertjax for a
quarter of them, with AdamW and with Muon. They train on batches of 32 x 128 tokens with 15% masks
sampled anew, clipped gradients, no dropout, and a learning rate that warms up, to 1e-3 with AdamW
and 2e-3 with Muon, and decays linearly with the time of training. PyTorch's loop is that of
transformers' `run_mlm.py`: `BertForMaskedLM`, and blocks of the concatenated text. On CPUs with
bfloat16 matmuls both use them, PyTorch by autocast as with `run_mlm.py --bf16`. The time includes
compilation, but neither imports nor checkpoints. All checkpoints are measured by PyTorch, in
float32, on the same masked blocks.

Nothing else may run at the same time. Complete runs and measurements are not repeated. The result
is stored in --output and plotted.
"""

import argparse
import functools
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import load, load_config, pretrain
from bertjax.corpus.reader import open_corpus
from bertjax.inference import loader
from bertjax.io import files as io_files
from bertjax.layers.embeddings import sinusoidal
from bertjax.runtime import host
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.metric_records import read_metrics

LENGTH, BATCH, MASK_SHARE, RATE, WARMUP, DECAY = 128, 32, 0.15, 1e-3, 0.05, 0.01
STDDEV = 0.04
NUM_CHECKPOINTS = 10
QUARTER = 0.24
"""Share of the time of the short run, without compilation."""
PACKAGES = ("jax", "torch", "transformers")
NUM_HELD_OUT = 1024
NO_LABEL = -100
OURS, THEIRS = "bertjax", "PyTorch"
QUARTER_RUNS: Mapping[str, Mapping[str, Any]] = {
    f"{OURS}, quarter": {},
    f"{OURS}, quarter, Muon": {"optimizer.name": "muon", "optimizer.learning_rate": 2e-3},
}
"""Short runs, and the fields that differ from the long one."""
INITIAL, CURVE, LOSS = "initial", "curve.json", "loss.json"

Curve = Sequence[tuple[float, int, str]]
"""Seconds of training, steps, and Hugging Face folder of each checkpoint."""


def main() -> None:
    """Trains both, measures their checkpoints, prints and plots the result."""
    arguments = _parser().parse_args()
    workdir = pathlib.Path(arguments.workdir)
    if arguments.in_torch:
        train_in_torch(arguments, workdir / THEIRS)
        return
    if not (workdir / THEIRS / CURVE).exists():
        command = [sys.executable, __file__, *sys.argv[1:], "--in_torch"]
        subprocess.run(command, check=True)
    curves: dict[str, Curve] = {
        THEIRS: json.loads((workdir / THEIRS / CURVE).read_text(encoding="utf-8")),
        OURS: train(arguments, workdir / OURS, arguments.seconds, {}),
    }
    for name, changes in QUARTER_RUNS.items():
        curves[name] = train(arguments, workdir / name, QUARTER * arguments.seconds, changes)
    losses = {
        name: [(*position, evaluate(arguments, folder)) for *position, folder in curve]
        for name, curve in curves.items()
    }
    result = {
        "machine": {
            "cores": os.cpu_count(),
            "bfloat16_matmuls": host.has_bfloat16_matmul(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "seconds": arguments.seconds,
        "losses": losses,
    }
    output = pathlib.Path(arguments.output)
    io_files.write_atomic(output, f"{json.dumps(result, indent=1)}\n".encode())
    for name, curve in losses.items():
        seconds, steps, loss = curve[-1]
        print(f"{name}: {loss:.4f} nats after {seconds:.0f} s, {steps:,} steps")
    _plot(losses, output.with_suffix(".png"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("corpus", "tokenizer", "workdir"):
        parser.add_argument(f"--{name}", required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=1800.0, help="of training of each")
    parser.add_argument("--output", required=True, metavar="FILE.json")
    parser.add_argument("--in_torch", action="store_true", help=argparse.SUPPRESS)
    return parser


def train(
    arguments: argparse.Namespace,
    workdir: pathlib.Path,
    seconds: float,
    changes: Mapping[str, Any],
) -> Curve:
    """Trains with bertjax and exports its checkpoints."""
    fields = {
        "num_train_steps": 1_000_000,  # at most; the schedule follows the time
        "budget_seconds": seconds,
        "checkpoint_every": 250,
        "keep_checkpoints": 1000,
        "keep_best": 0,
        "eval_every": 0,
        "eval_examples": BATCH,
        "data.corpus": arguments.corpus,
        "data.phases": (),
        "data.max_seq_length": LENGTH,
        "data.batch_size": BATCH,
        "data.format": "packed-documents",  # without padding, as the blocks of PyTorch
        "data.microbatches": 1,
        "objectives.mlm.masked_lm_prob": MASK_SHARE,
        "tokenizer.path": arguments.tokenizer,
        "optimizer.learning_rate": RATE,
        "optimizer.warmup_steps": int(WARMUP * 1_000_000),
        "optimizer.weight_decay": DECAY,
        "optimizer.adam_b2": 0.999,
        "optimizer.adam_eps": 1e-8,
        "optimizer.max_grad_norm": 1.0,
    }
    config = load_config("roberta:base", fields | changes)
    initial = loader.find_run(workdir.parent / THEIRS / INITIAL)
    pretrain(config, str(workdir), init=initial, log=print)
    (end,) = (row for row in read_metrics(workdir) if "goodput/steps" in row)
    per_step = (end["goodput/steps"] + end["goodput/input"]) / end["step"]
    curve = []
    for step in checkpoint_folder.steps(workdir / "checkpoints"):
        folder = workdir / "huggingface" / str(step)
        if not folder.exists():
            load(f"{workdir}@{step}").save_pretrained(folder)
        curve.append((end["goodput/compile"] + per_step * step, step, str(folder)))
    return curve


def train_in_torch(arguments: argparse.Namespace, workdir: pathlib.Path) -> None:
    """Trains with PyTorch; stores the initial model, and checkpoints with the time of training."""
    import torch

    torch.manual_seed(0)
    blocks, random = _blocks(arguments, "train"), np.random.default_rng(0)
    model = _initial_model(arguments)
    model.save_pretrained(workdir / INITIAL)
    _tokenizer(arguments.tokenizer).save_pretrained(workdir / INITIAL)
    optimizer = torch.optim.AdamW(_parameter_groups(model), lr=RATE)
    start, saving, saved, order = time.monotonic(), 0.0, [], np.zeros(0, int)
    steps = 0
    while (spent := time.monotonic() - start - saving) < arguments.seconds or len(saved) == 0:
        share = spent / arguments.seconds
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(share / WARMUP, (1 - share) / (1 - WARMUP))
        if len(order) < BATCH:
            order = random.permutation(len(blocks))
        rows, order = order[:BATCH], order[BATCH:]
        with torch.autocast("cpu", torch.bfloat16, enabled=host.has_bfloat16_matmul()):
            loss = model(**_masked(arguments, blocks[rows], random)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        spent = time.monotonic() - start - saving
        if spent >= arguments.seconds * (len(saved) + 1) / NUM_CHECKPOINTS:
            before = time.monotonic()
            model.save_pretrained(workdir / f"{spent:.1f}")
            saved.append((spent, steps, str(workdir / f"{spent:.1f}")))
            print(f"{THEIRS}: {spent:.0f} s, {steps:,} steps, loss {loss.item():.3f}", flush=True)
            saving += time.monotonic() - before
    io_files.write_atomic(workdir / CURVE, json.dumps(saved).encode())


def evaluate(arguments: argparse.Namespace, folder: str) -> float:
    """Returns the mean loss of a checkpoint on masked tokens of held-out blocks, in nats."""
    import torch
    import transformers

    stored = pathlib.Path(folder) / LOSS
    if stored.exists():
        return json.loads(stored.read_text(encoding="utf-8"))
    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    blocks, random = _blocks(arguments, "validation")[:NUM_HELD_OUT], np.random.default_rng(1)
    total, count = 0.0, 0
    with torch.inference_mode():
        for first in range(0, len(blocks), BATCH):
            batch = _masked(arguments, blocks[first : first + BATCH], random)
            num = int((batch["labels"] != NO_LABEL).sum())
            total, count = total + num * model(**batch).loss.item(), count + num
    io_files.write_atomic(stored, json.dumps(total / count).encode())
    return total / count


@functools.cache
def _tokenizer(folder: str) -> Any:
    import transformers

    return transformers.BertTokenizer(f"{folder}/vocab.txt")


def _blocks(arguments: argparse.Namespace, split: str) -> np.ndarray:
    """Returns the concatenated text of a split as blocks of [CLS] text [SEP]."""
    corpus, tokenizer = open_corpus(arguments.corpus, split), _tokenizer(arguments.tokenizer)
    records = corpus.read(np.arange(corpus.num_records))
    ids = np.concatenate(
        [
            np.frombuffer(record, corpus.dtype)[:number]  # sentence lengths follow
            for record, number in zip(records, corpus.tokens, strict=True)
        ]
    )
    width = LENGTH - 2
    text = ids[: len(ids) // width * width].reshape(-1, width).astype(np.int64)
    ends = ((tokenizer.cls_token_id, tokenizer.sep_token_id),)
    return np.pad(text, ((0, 0), (1, 1)), constant_values=((0, 0), *ends))


def _masked(
    arguments: argparse.Namespace, blocks: np.ndarray, random: np.random.Generator
) -> dict[str, Any]:
    """Masks 15% of the tokens: 80% of them [MASK], 10% random, 10% unchanged."""
    import torch

    tokenizer = _tokenizer(arguments.tokenizer)
    is_text = np.zeros(blocks.shape, bool)
    is_text[:, 1:-1] = True
    chosen = is_text & (random.random(blocks.shape) < MASK_SHARE)
    kind = random.random(blocks.shape)
    ids = np.where(chosen & (kind < 0.8), tokenizer.mask_token_id, blocks)
    others = random.integers(len(tokenizer.all_special_ids), len(tokenizer), blocks.shape)
    ids = np.where(chosen & (kind > 0.9), others, ids)
    labels = np.where(chosen, blocks, NO_LABEL)
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def _initial_model(arguments: argparse.Namespace) -> Any:
    """Returns a BERT-mini with the initialisation of `configs/bert_mini_hour.py`."""
    import jax
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=len(_tokenizer(arguments.tokenizer)),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=STDDEV,
    )
    model = transformers.BertForMaskedLM(config)
    positions = sinusoidal(STDDEV)(jax.random.key(0), (LENGTH, 256))
    model.bert.embeddings.position_embeddings.weight.data = torch.tensor(np.array(positions))
    return model


def _parameter_groups(model: Any) -> list[dict[str, Any]]:
    """Weight decay for matrices alone, as in BERT's recipe."""
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    return [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]


def _plot(losses: Mapping[str, Sequence[tuple[float, int, float]]], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name, curve in losses.items():
        seconds, _, values = np.array(curve).T
        axes.plot(seconds / 60, values, ".-", label=name)
    axes.axhline(losses[THEIRS][-1][-1], color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="minutes of training", ylabel="held-out MLM loss [nats]")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
