"""Fine-tunes a released BERT on STS-B in bertjax and PyTorch; prints both losses of every step.

    python experiments/finetuning_parity.py --model minilm/ --init runs/minilm --data glue/ \
        --steps 60 > experiments/minilm_finetuning/stsb_without_dropout.jsonl

Both have the same initial head, the same batches and no dropout, so that the losses differ by
rounding only. `--init` is the run that `bertjax import` creates from `--model`. Needs the
dependency group `test-all`.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
from collections.abc import Mapping

import jax
import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax import config as configs
from bertjax.runs import finetune_job
from bertjax.train.checkpoint import origin

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPE = {
    "optimizer.learning_rate": 5e-5,
    "optimizer.adam_eps": 1e-8,
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "model.precision": "float32",
    "task.classifier_dropout": 0.0,
}
NAMES = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "segment_ids",
}


def main() -> None:
    """Prints one JSON line per step."""
    arguments = _parser().parse_args()
    recipe = configs.replace_fields(configs.load_config(f"{ROOT}/configs/glue.py:stsb"), RECIPE)
    with tempfile.TemporaryDirectory() as workdir:
        job = finetune_job.prepare(
            recipe, init=arguments.init, data=arguments.data, workdir=workdir
        )
        trainer = job.trainer(0)
        state = trainer.create_state()
        encoder = origin.load_params(job.origin.checkpoint, state.params, "encoder")
        state = dataclasses.replace(state, params=encoder)
        model = _model(arguments.model, state.params["glue"]["classifier"]["dense"])
        optimizer = _adamw(model, job.config.optimizer)
        for step, batch in job.dataset.batches["train"].training_batches():
            if step == arguments.steps:
                break
            state, metrics = trainer.train_step(state, jax.device_put(batch))
            loss = _train_step(model, optimizer, batch, float(metrics["learning_rate"]))
            losses = {"bertjax": float(metrics["loss"]), "torch": loss}
            print(json.dumps({"step": step, **losses}), flush=True)


def _model(folder: str, head: Mapping[str, jax.Array]) -> torch.nn.Module:
    """The classifier of transformers with the head of bertjax."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder,
        num_labels=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.0,
    )
    with torch.no_grad():
        model.classifier.weight.copy_(torch.tensor(np.asarray(head["kernel"]).T))
        model.classifier.bias.copy_(torch.tensor(np.asarray(head["bias"])))
    return model.train()


def _adamw(model: torch.nn.Module, fields: configs.ConfigDict) -> torch.optim.Optimizer:
    """AdamW of transformers' Trainer: no weight decay of biases and LayerNorm scales."""
    groups = ([], [])
    for name, parameter in model.named_parameters():
        groups["bias" in name or "LayerNorm" in name].append(parameter)
    decays = fields.weight_decay, 0.0
    return torch.optim.AdamW(
        [{"params": group, "weight_decay": d} for group, d in zip(groups, decays, strict=True)],
        eps=fields.adam_eps,
    )


def _train_step(model, optimizer, batch: Mapping[str, np.ndarray], learning_rate: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    inputs = {name: torch.tensor(np.asarray(batch[own])).long() for name, own in NAMES.items()}
    error = model(**inputs).logits[:, 0] - torch.tensor(batch["labels"])
    loss = (error[torch.tensor(batch["example_weight"] > 0)] ** 2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="folder of a Hugging Face BERT")
    add("--init", required=True, help="folder of the run imported from it")
    add("--data", required=True, help="folder of the GLUE data, with STS-B/")
    add("--steps", type=int, default=60, help="optimizer steps (default: 60)")
    return parser


if __name__ == "__main__":
    main()
