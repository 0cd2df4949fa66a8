"""Fine-tuning of a classifier of texts as a command, for compare_peers.py.

    python finetuning.py FOLDER

A step is a run, from the start of its process to the scores and the stored model. FOLDER receives a
random BERT and random sentences of mixed length with two labels, which both read. No compiled
program is kept between runs of bertjax.
"""

import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import transformers
from inputs import SEED, minilm_folder, sentences
from torch_steps import bert_config
from worker import LEARNING_RATE, MAX_GRAD_NORM, PRECISIONS, WEIGHT_DECAY, Shape, Step, serve

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NUM_DEV = 1_000
NUM_LABELS = 2
"""The default of transformers' classifiers."""


def builder(command: Callable[[Shape, pathlib.Path, pathlib.Path], Sequence[str]]) -> Callable:
    """Returns the builder of a peer from the command of a run (shape, inputs, output)."""

    def build(shape: Shape) -> tuple[Step, int]:
        inputs = pathlib.Path(sys.argv[1]) / shape.name
        if not inputs.exists():
            _write_inputs(shape, inputs)
        output, cache = inputs / "output", inputs / "cache"
        environment = os.environ | {"BERTJAX_CACHE": str(cache)}

        def step() -> None:
            for folder in (output, cache):
                shutil.rmtree(folder, ignore_errors=True)
            subprocess.run(command(shape, inputs, output), env=environment, cwd=ROOT, check=True)

        return step, json.loads((inputs / "parameters.json").read_text())

    return build


def _write_inputs(shape: Shape, folder: pathlib.Path) -> None:
    """Writes `model`, in the layout of transformers, and the tables of `data`."""
    tokenizer = transformers.BertTokenizer(str(minilm_folder() / "vocab.txt"))
    model = transformers.BertModel(bert_config(shape))
    for part in (model, tokenizer):
        part.save_pretrained(folder / "model")
    num_train = shape.num_steps * shape.batch_size
    texts = sentences(num_train + NUM_DEV)
    labels = np.random.default_rng(SEED).integers(NUM_LABELS, size=len(texts))
    rows = list(zip(texts, labels.tolist(), strict=True))
    (folder / "data").mkdir()
    for split, part in (("train", rows[:num_train]), ("dev", rows[num_train:])):
        with open(folder / "data" / f"{split}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *part])
    (folder / "parameters.json").write_text(json.dumps(model.num_parameters()))


def trainer(shape: Shape, inputs: pathlib.Path, output: pathlib.Path) -> Sequence[str]:
    """`Trainer` of transformers."""
    return (
        *(sys.executable, "tools/peers/trainer.py"),
        *(str(inputs / "model"), str(inputs / "data"), str(output)),
        *("--batch_size", str(shape.batch_size), "--precision", shape.precision),
    )


def bertjax(shape: Shape, inputs: pathlib.Path, output: pathlib.Path) -> Sequence[str]:
    """`bertjax finetune`, with the texts of a batch packed into rows."""
    fields = {
        "num_train_epochs": 1,
        "choose_epoch": "last",
        "data.batch_size": shape.batch_size,
        "data.packed_examples": 0 if shape.batch_size % 8 else shape.batch_size,
        "model.precision": PRECISIONS[shape.precision],
        "optimizer.learning_rate": LEARNING_RATE,
        "optimizer.weight_decay": WEIGHT_DECAY,
        "optimizer.max_grad_norm": MAX_GRAD_NORM,
    }
    return (
        *(sys.executable, "-m", "bertjax", "finetune", "--config", "task"),
        *("--init", str(inputs / "model"), "--data", str(inputs / "data")),
        *("--text", "text", "--label", "label", "--workdir", str(output)),
        *(f"--config.{name}={value}" for name, value in fields.items()),
    )


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(
        {"huggingface_trainer": builder(trainer), "bertjax": builder(bertjax)},
        warm_up=False,  # every run is a new process
    )
