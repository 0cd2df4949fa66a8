"""Fine-tunes MiniLM on banking77 in PyTorch, with the recipe of `--config task:small`; prints JSON.

    python experiments/banking77_in_torch.py --model minilm/ --data banking77/ --seeds 0 1 2

The reference for `bertjax finetune --config task:small` on the same files, the same dev split and
test examples: AdamW with a weight decay of 0.01, batches of 32, 4 epochs, a peak learning rate of
1e-4 with a warmup of 10% and linear decay, gradients clipped at norm 1, dropout 0.1. The epoch with
the best dev accuracy is reported. `--steps` stops earlier, to estimate the time. Needs the
dependency group `test-all`.
"""

import argparse
import json
import pathlib
import sys
import time

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax.tasks import tables
from bertjax.tasks.sequence.examples import choose_held_out

BATCH, EPOCHS, RATE, WARMUP, DECAY, LENGTH = 32, 4, 1e-4, 0.1, 0.01, 128


def read(data: str) -> tuple[dict[str, tuple[list[str], np.ndarray]], list[str]]:
    """Returns texts and class indices of train, dev and test, and the names of the classes."""
    found = tables.read_splits(data)
    names = sorted(set(found["train"].columns["category"]))
    parts = {}
    for split, table in found.items():
        labels = np.array([names.index(name) for name in table.columns["category"]])
        parts[split] = [text.strip() for text in table.columns["text"]], labels
    texts, labels = parts["train"]
    is_dev = choose_held_out(labels.astype(np.int32), tables.DEV_SHARE, 0)
    for split, chosen in (("dev", is_dev), ("train", ~is_dev)):
        kept = np.flatnonzero(chosen)
        parts[split] = [texts[i] for i in kept], labels[kept]
    return parts, names


def encode(tokenizer, texts: list[str]) -> dict[str, torch.Tensor]:
    return tokenizer(texts, truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")


@torch.no_grad()
def accuracy(model, tokenizer, texts: list[str], labels: np.ndarray) -> float:
    """Returns the accuracy of a split."""
    model.eval()
    found = [
        model(**encode(tokenizer, texts[begin : begin + 64])).logits.argmax(-1).numpy()
        for begin in range(0, len(texts), 64)
    ]
    return float((np.concatenate(found) == labels).mean())


def parameter_groups(model) -> list[dict]:
    """Returns the parameters with weight decay, and biases and LayerNorm without."""
    names = dict(model.named_parameters())
    exempt = {name for name in names if name.endswith("bias") or "LayerNorm" in name}
    return [
        {"params": [p for name, p in names.items() if name not in exempt], "weight_decay": DECAY},
        {"params": [names[name] for name in sorted(exempt)], "weight_decay": 0.0},
    ]


def train(arguments: argparse.Namespace, parts: dict, names: list[str], seed: int) -> dict:
    """Trains a seed and returns its scores."""
    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        arguments.model, num_labels=len(names)
    )
    texts, labels = parts["train"]
    steps = EPOCHS * -(-len(texts) // BATCH)
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=RATE, eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(WARMUP * steps), steps)
    order, best, step, start = np.random.default_rng(seed), {"dev/accuracy": -1.0}, 0, time.time()
    for _ in range(EPOCHS):
        shuffled = order.permutation(len(texts))
        model.train()
        for begin in range(0, len(texts), BATCH):
            rows = shuffled[begin : begin + BATCH]
            inputs = encode(tokenizer, [texts[i] for i in rows])
            loss = model(**inputs, labels=torch.from_numpy(labels[rows])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step == arguments.steps:
                return {"seed": seed, "loss": loss.item(), "seconds": time.time() - start}
        scores = {
            f"{split}/accuracy": accuracy(model, tokenizer, *parts[split])
            for split in ("dev", "test")
        }
        best = scores if scores["dev/accuracy"] > best["dev/accuracy"] else best
        print(json.dumps({"seed": seed, "step": step, **scores}), file=sys.stderr)
    return {"seed": seed, **best, "seconds": time.time() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="folder of a Hugging Face encoder")
    parser.add_argument("--data", required=True, help="folder of train.csv and test.csv")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="steps of a trial; 0 trains fully")
    arguments = parser.parse_args()
    parts, names = read(arguments.data)
    for seed in arguments.seeds:
        print(json.dumps(train(arguments, parts, names, seed)), flush=True)


if __name__ == "__main__":
    main()
