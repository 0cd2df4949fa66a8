"""Fine-tunes a classifier of texts with transformers' Trainer, for compare_peers.py.

    python trainer.py MODEL DATA OUTPUT --batch_size 32 --precision float32

DATA has `train.csv` and `dev.csv` with the columns `text` and `label`. The recipe is that of
finetuning.py; batches are padded to their longest text.
"""

import argparse
import csv
import pathlib

import torch
import transformers
from worker import LEARNING_RATE, MAX_GRAD_NORM, WEIGHT_DECAY

MAX_LENGTH, EVAL_BATCH_SIZE, WARMUP_SHARE = 128, 64, 0.1


def main() -> None:
    """Trains an epoch, evaluates, and stores the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "data", "output"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--precision", required=True)
    arguments = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    train, dev = (_read(arguments.data / f"{split}.csv", tokenizer) for split in ("train", "dev"))
    trainer = transformers.Trainer(
        transformers.AutoModelForSequenceClassification.from_pretrained(arguments.model),
        transformers.TrainingArguments(
            output_dir=str(arguments.output),
            num_train_epochs=1,
            per_device_train_batch_size=arguments.batch_size,
            per_device_eval_batch_size=EVAL_BATCH_SIZE,
            learning_rate=LEARNING_RATE,
            warmup_steps=round(WARMUP_SHARE * len(train) / arguments.batch_size),
            weight_decay=WEIGHT_DECAY,
            max_grad_norm=MAX_GRAD_NORM,
            bf16=arguments.precision == "bfloat16",
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        transformers.DataCollatorWithPadding(tokenizer),
        train,
        dev,
        compute_metrics=_accuracy,
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model()


def _read(path: pathlib.Path, tokenizer: transformers.PreTrainedTokenizerBase) -> list[dict]:
    """Returns the token ids and label of each row."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    encoded = tokenizer([row["text"] for row in rows], truncation=True, max_length=MAX_LENGTH)
    return [
        {"input_ids": ids, "labels": int(row["label"])}
        for ids, row in zip(encoded["input_ids"], rows, strict=True)
    ]


def _accuracy(predictions: transformers.EvalPrediction) -> dict[str, float]:
    predicted = torch.tensor(predictions.predictions).argmax(-1)
    return {"accuracy": (predicted == torch.tensor(predictions.label_ids)).float().mean().item()}


if __name__ == "__main__":
    main()
