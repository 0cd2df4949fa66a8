"""Fine-tunes a Hugging Face model in PyTorch with the recipes of its example scripts; prints JSON.

    python tools/finetune_in_torch.py mrpc --model minilm/ --data glue/ --seeds 3
    python tools/finetune_in_torch.py squad1 --model minilm/ --data squad/ --max_seq_length 384
    python tools/finetune_in_torch.py ner --model minilm/ --data conll2003/

The reference for bertjax's fine-tuning: the recipes of transformers' `run_glue.py`, `run_qa.py` and
`run_ner.py` (AdamW, linear decay of the learning rate, gradients clipped at norm 1, dropout as the
model's config has it, batches padded to their longest sequence), with transformers' tokenizer,
heads and models. By default there is no warmup and no weight decay, as in these scripts. The files,
the sampled training examples and the metrics are those of bertjax, so that both train and are
evaluated on the same examples. Needs
the dependency group `test-all`.

The equivalent overrides in bertjax: `--config.optimizer.warmup_share=0
--config.optimizer.weight_decay=0 --config.optimizer.adam_eps=1e-8`. `--losses FILE` writes the
training loss of every step, one JSON line per seed.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax.data.random import sample
from bertjax.metrics import answers, classification, entities
from bertjax.tasks.glue import files as glue_files
from bertjax.tasks.glue import table as glue_table
from bertjax.tasks.ner import conll as ner_conll
from bertjax.tasks.squad import files as squad_files

NO_LABEL = -100
"""The label that the loss of transformers ignores."""

Example = dict[str, Any]


class Sentences:
    """A GLUE task, after `run_glue.py`."""

    kind = transformers.AutoModelForSequenceClassification

    def __init__(self, arguments: argparse.Namespace, tokenizer):
        self.task = glue_table.glue_task(arguments.task)
        examples = glue_files.read(arguments.data, self.task)
        train = examples["train"]
        if arguments.max_train_examples:
            train = train.sample(arguments.max_train_examples, seed=0)
        self.dev = examples["dev"]
        self.options = {"num_labels": len(self.task.labels) or 1}
        self.train, self.eval_examples = (
            _encode(tokenizer, arguments.max_seq_length, *part.texts) for part in (train, self.dev)
        )
        for example, label in zip(self.train, train.labels.tolist(), strict=True):
            example["labels"] = label

    def score(self, outputs: list) -> dict[str, float]:
        logits = np.stack([output.logits.numpy() for output in outputs])
        found = logits.argmax(-1) if self.task.labels else logits[:, 0]
        return {
            name: getattr(classification, name)(found, self.dev.labels)
            for name in self.task.metrics
        }


class Words:
    """NER, after `run_ner.py`: words are labelled and predicted at their first token."""

    kind = transformers.AutoModelForTokenClassification

    def __init__(self, arguments: argparse.Namespace, tokenizer):
        folder = pathlib.Path(arguments.data)
        train, self.dev = (ner_conll.read(folder / name) for name in ("train.txt", "valid.txt"))
        self.tags = ner_conll.tag_names(train)
        if arguments.max_train_examples:
            train = [train[i] for i in sample(len(train), arguments.max_train_examples, 0)]
        self.options = {"num_labels": len(self.tags)}
        numbers = {tag: number for number, tag in enumerate(self.tags)}
        self.train, self.eval_examples, self.places = [], [], []
        for sentence in train:
            example, places = self._sequence(tokenizer, arguments, sentence)
            example["labels"] = [NO_LABEL] * len(example["input_ids"])
            for place, tag in zip(places, sentence.tags, strict=False):
                example["labels"][place] = numbers[tag]
            self.train.append(example)
        for sentence in self.dev:
            example, places = self._sequence(tokenizer, arguments, sentence)
            self.eval_examples.append(example)
            self.places.append(places)

    def _sequence(self, tokenizer, arguments, sentence) -> tuple[Example, list[int]]:
        """The sequence, and the first token of each word that is not truncated."""
        found = tokenizer(
            list(sentence.words),
            is_split_into_words=True,
            truncation=True,
            max_length=arguments.max_seq_length,
        )
        words = found.word_ids()
        places = [words.index(word) for word in range(len(sentence)) if word in words]
        return dict(found), places

    def score(self, outputs: list) -> dict[str, float]:
        predicted = []
        for output, places, sentence in zip(outputs, self.places, self.dev, strict=True):
            found = output.logits.argmax(-1).numpy()
            tags = [self.tags[found[place]] for place in places]
            predicted.append(tags + ["O"] * (len(sentence) - len(tags)))
        return entities.score(predicted, [list(sentence.tags) for sentence in self.dev])


class Questions:
    """SQuAD 1.1, after `run_qa.py`: overlapping windows, the best span of 20 starts and 20 ends."""

    kind = transformers.AutoModelForQuestionAnswering
    stride, n_best, max_answer_length = 128, 20, 30

    def __init__(self, arguments: argparse.Namespace, tokenizer):
        folder = pathlib.Path(arguments.data)
        train = squad_files.read(folder / "train-v1.1.json")
        if arguments.max_train_examples:
            train = train.sample(arguments.max_train_examples, seed=0)
        self.dev = squad_files.read(folder / "dev-v1.1.json", on_mismatch="keep")
        self.options = {}
        self.train = self._windows(tokenizer, arguments, train)
        reach = train.first_answers()
        for example in self.train:
            first, last = self._answer(example, *reach[example["question"]])
            example |= {"start_positions": first, "end_positions": last}
        self.eval_examples = self._windows(tokenizer, arguments, self.dev)

    def _windows(self, tokenizer, arguments, questions) -> list[Example]:
        found = tokenizer(
            [question.lstrip() for question in questions.questions],
            [questions.contexts[i] for i in questions.context_of],
            truncation="only_second",
            max_length=arguments.max_seq_length,
            stride=self.stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        return [
            {name: found[name][i] for name in tokenizer.model_input_names}
            | {"question": found["overflow_to_sample_mapping"][i]}
            | {"reach": _context_offsets(found["offset_mapping"][i], found.sequence_ids(i))}
            for i in range(len(found["input_ids"]))
        ]

    def _answer(self, example: Example, begin: int, end: int) -> tuple[int, int]:
        """The first and the last token of an answer, or [CLS] if it is not in the window."""
        inside = [i for i, reach in enumerate(example["reach"]) if reach]
        if example["reach"][inside[0]][0] > begin or example["reach"][inside[-1]][1] < end:
            return 0, 0
        first = max(i for i in inside if example["reach"][i][0] <= begin)
        last = min(i for i in inside if example["reach"][i][1] >= end)
        return first, last

    def score(self, outputs: list) -> dict[str, float]:
        best = {}
        for output, example in zip(outputs, self.eval_examples, strict=True):
            start, end = output.start_logits.numpy(), output.end_logits.numpy()
            reach, number = example["reach"], example["question"]
            for i in np.argsort(start)[::-1][: self.n_best]:
                for j in np.argsort(end)[::-1][: self.n_best]:
                    if j < i or j - i + 1 > self.max_answer_length or not (reach[i] and reach[j]):
                        continue
                    found = (start[i] + end[j], reach[i][0], reach[j][1])
                    best[number] = max(best.get(number, found), found)
        texts = {}
        for number, (_, begin, end) in best.items():
            context = self.dev.contexts[self.dev.context_of[number]]
            texts[self.dev.ids[number]] = context[begin:end]
        scores = answers.score_squad_v1(texts, self.dev.references())
        return {name: scores[name] / 100 for name in ("exact_match", "f1")}


def main() -> None:
    """Fine-tunes every seed and prints scores, medians and durations."""
    arguments = _parser().parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    kinds = {"squad1": Questions, "ner": Words}
    task = kinds.get(arguments.task, Sentences)(arguments, tokenizer)
    results = []
    for seed in range(arguments.seeds):
        start = time.monotonic()
        scores = _fine_tune(task, arguments, tokenizer, seed)
        results.append({"seed": seed, **scores, "seconds": round(time.monotonic() - start, 1)})
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    medians = {
        name: statistics.median(result[name] for result in results)
        for name in results[0]
        if name != "seed"
    }
    print(json.dumps({"arguments": vars(arguments), "seeds": results, "median": medians}, indent=2))


def _fine_tune(task, arguments: argparse.Namespace, tokenizer, seed: int) -> dict[str, float]:
    transformers.set_seed(seed)
    model = task.kind.from_pretrained(arguments.model, **task.options)
    optimizer = torch.optim.AdamW(
        _parameter_groups(model, arguments.weight_decay),
        lr=arguments.learning_rate,
        eps=arguments.adam_eps,
    )
    steps = arguments.epochs * -(-len(task.train) // arguments.batch_size)
    warmup_steps = round(arguments.warmup_share * steps)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup_steps, steps)
    losses = []
    model.train()
    for epoch in range(arguments.epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(task.train))
        for begin in range(0, len(order), arguments.batch_size):
            chosen = [task.train[i] for i in order[begin : begin + arguments.batch_size]]
            loss = model(**_batch(tokenizer, chosen)).loss
            loss.backward()
            losses.append(loss.item())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    if arguments.losses:
        with open(arguments.losses, "a") as file:
            file.write(json.dumps({"seed": seed, "losses": losses}) + "\n")
    return task.score(_predict(model, task.eval_examples, tokenizer, arguments.batch_size))


def _parameter_groups(model, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of transformers' Trainer: no decay of biases and LayerNorm scales."""
    decayed, exempt = [], []
    for name, parameter in model.named_parameters():
        (exempt if "bias" in name or "LayerNorm" in name else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": exempt, "weight_decay": 0.0},
    ]


@torch.no_grad()
def _predict(model, examples: list[Example], tokenizer, batch_size: int) -> list:
    """Outputs of the model for each sequence, in order; batches have similar lengths."""
    model.eval()
    order = sorted(range(len(examples)), key=lambda i: len(examples[i]["input_ids"]))
    outputs = [None] * len(examples)
    for begin in range(0, len(order), batch_size):
        chosen = order[begin : begin + batch_size]
        found = model(**_batch(tokenizer, [examples[i] for i in chosen]))
        for row, i in enumerate(chosen):
            outputs[i] = type(found)(**{name: values[row] for name, values in found.items()})
    return outputs


def _batch(tokenizer, examples: list[Example]) -> dict[str, torch.Tensor]:
    names = set(tokenizer.model_input_names)
    inputs = [{name: example[name] for name in names} for example in examples]
    batch = dict(tokenizer.pad(inputs, return_tensors="pt"))
    for name in ("labels", "start_positions", "end_positions"):
        if name in examples[0]:
            values = [example[name] for example in examples]
            if isinstance(values[0], list):
                length = batch["input_ids"].shape[1]
                values = [value + [NO_LABEL] * (length - len(value)) for value in values]
            batch[name] = torch.tensor(values)
    return batch


def _encode(tokenizer, max_seq_length: int, *texts: list[str]) -> list[Example]:
    found = tokenizer(*texts, truncation=True, max_length=max_seq_length)
    rows = range(len(texts[0]))
    return [{name: found[name][i] for name in tokenizer.model_input_names} for i in rows]


def _context_offsets(offsets: list, texts: list) -> list:
    """Character offsets of each token of the context; None for other tokens."""
    return [reach if text == 1 else None for reach, text in zip(offsets, texts, strict=True)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("task", help="squad1, ner, or a task of GLUE, such as mrpc")
    add("--model", required=True, help="folder of a Hugging Face model")
    add("--data", required=True, help="folder of the files, as for `bertjax finetune`")
    add("--seeds", type=int, default=3)
    add("--epochs", type=int, default=3)
    add("--learning_rate", type=float, default=5e-5)
    add("--warmup_share", type=float, default=0.0, help="share of the steps (default: 0)")
    add("--weight_decay", type=float, default=0.0)
    add("--adam_eps", type=float, default=1e-8)
    add("--losses", help="file to which the losses of every step are appended")
    add("--batch_size", type=int, default=32)
    add("--max_seq_length", type=int, default=128)
    add("--max_train_examples", type=int, default=0, help="sampled with seed 0; 0 for all")
    return parser


if __name__ == "__main__":
    main()
