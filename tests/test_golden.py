"""Twenty steps of every recipe, shrunk, follow the curves that golden/ holds.

From text to tokenizer, corpus, batches, masks, loss, update and held-out measurement: whatever
changes the numbers of a run changes a curve. Where that is meant, `tools/regolden` rewrites them,
and the change says why. Types are float32, and the tolerance is that of another processor's or
another release's order of summation.
"""

import itertools
import json
import pathlib
import random
import re

import numpy as np
import pytest

from bertjax import finetuning, pretraining, pretraining_job
from bertjax.config import load_config, to_json
from bertjax.train.interrupt import Interrupt
from bertjax.train.metric_writer import read_metrics

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden"
STEPS = 20
TOLERANCE = 2e-3
SHRUNK = {
    "model.vocab_size": "140",
    "model.hidden_size": "24",
    "model.num_hidden_layers": "2",
    "model.num_attention_heads": "3",
    "model.intermediate_size": "40",
    "model.max_position_embeddings": "32",
    "model.precision": "float32",
    "data.phases": "()",
    "data.max_seq_length": "32",
    "data.batch_size": "8",
    "data.validation_fraction": "0.2",
    "data.validation_input": "()",
    "data.corpus": "",
    "tokenizer.vocab_size": "140",
    "num_train_steps": str(STEPS),
    "optimizer.learning_rate": "0.01",
    "optimizer.warmup_steps": "2",
    "log_every": "1",
    "eval_every": "10",
    "eval_examples": "16",
    "checkpoint_every": "0",
}
PRETRAINING = (
    "quickstart.py",
    "bert.py:tiny",
    "bert_mini_hour.py",
    "family.py:bert",
    "students.py:distilbert_alone",
    "bert_wwm.py:tiny",
    "bert_masks30.py:tiny",
    "roberta.py:tiny",
    "spanbert.py:tiny",
    "albert.py:tiny",
    "electra.py:tiny",
    "xlnet.py:tiny",
    "gpt1.py:tiny",
    "gpt2.py:tiny",
    "gpt3.py:tiny",
    "language_models.py:gpt",
    "transformer.py:tiny",
    "reversal.py",
    "t5.py:tiny",
    "bart.py:tiny",
    "mass.py:tiny",
    "unilm.py:tiny",
    "elmo.py:tiny",
    "universal_transformer.py:tiny",
    "vit.py:tiny",
)
OWN = {
    # Two microbatches on eight devices; two rows before the first position; 256 bytes and five
    # special tokens before the first piece.
    "roberta.py:tiny": {
        "data.batch_size": "16",
        "model.max_position_embeddings": "34",
        "model.vocab_size": "300",
        "tokenizer.vocab_size": "300",
    },
    # Unlike byte pairs, SentencePiece's unigrams do not go on to whole sentences.
    "albert.py:tiny": {"model.vocab_size": "60", "tokenizer.vocab_size": "60"},
    # Likewise; and sentinels behind the pieces.
    "t5.py:tiny": {
        "model.vocab_size": "80",
        "tokenizer.vocab_size": "60",
        "objectives.span_corruption.num_sentinels": "20",
    },
    "bart.py:tiny": {
        "data.batch_size": "16",
        "model.vocab_size": "300",
        "tokenizer.vocab_size": "300",
    },
    # Likewise; and a memory that is shorter than a document.
    "xlnet.py:tiny": {
        "model.vocab_size": "60",
        "tokenizer.vocab_size": "60",
        "model.mem_len": "24",
    },
    # Byte pairs, as roberta.py; and documents that are packed, but kept apart.
    "gpt1.py:tiny": {"model.vocab_size": "300", "tokenizer.vocab_size": "300"},
    "language_models.py:gpt": {"model.vocab_size": "300", "tokenizer.vocab_size": "300"},
    "gpt3.py:tiny": {
        "data.batch_size": "16",
        "model.vocab_size": "300",
        "tokenizer.vocab_size": "300",
    },
    "gpt2.py:tiny": {
        "data.batch_size": "16",
        "data.format": "packed-apart",
        "model.vocab_size": "300",
        "tokenizer.vocab_size": "300",
    },
    # Words that are read and not predicted; rows that go on with the same document.
    "elmo.py:tiny": {
        "model.vocab_size": "30",
        "tokenizer.vocab_size": "30",
        "objectives.bidirectional_lm.softmax_size": "20",
        "model.filters": "((1, 4), (3, 6))",
        "model.max_chars_per_word": "12",
        "data.max_seq_length": "16",
    },
    "vit.py:tiny": {"data.input": "('digits',)", "data.max_seq_length": "1"},
}
"""What a recipe needs beside SHRUNK."""
DISTILLATION = {
    # Each with the objective that asks a teacher, which is the run of bert.py:tiny.
    "distilbert.py:tiny": "soft_targets",
    "tinybert.py:tiny": "layer_matching",
}
TASKS = {
    "cola": "glue.py:cola,tiny",
    "stsb": "glue.py:stsb,tiny",
    "mnli": "glue.py:mnli,tiny",
    "kbert": "kbert.py:book_review,tiny",
}
"""One sentence and two classes; two sentences and a number; three classes and two dev sets; a
sentence with knowledge in it."""
SHORT = {"data.max_seq_length": "32", "data.padded_lengths": "(32,)"}
OTHER_TASKS = {
    "squad": (
        "squad.py:squad2,tiny",
        SHORT | {"data.max_query_length": "8", "data.doc_stride": "8", "max_train_examples": "8"},
    ),
    "ner": ("ner.py:conll2003,tiny", SHORT),
    "ner_features": ("ner.py:conll2003,features,tiny", SHORT),
    "race": ("race.py:race,tiny", SHORT),
}
"""Spans, words, words by features, and choices; each with what makes it short."""
STAGES = {"layers": "layer_matching", "prediction": "soft_targets"}
"""Of tinybert_glue.py, each with the objective that asks a teacher."""
TUNING = ("glue", "kbert", "tinybert_glue", *OTHER_TASKS)
"""What belongs to tasks."""

NOUNS = ["cat", "dog", "house", "river", "teacher", "letter", "garden", "window", "engine", "song"]
VERBS = ["sees", "finds", "likes", "carries", "follows", "leaves", "paints", "remembers"]
PLACES = ["in the north", "near a wall", "after dinner", "without a word", "on the road"]


def sentences(seed: int):
    """Sentences of a few words that do not depend on the machine, without end."""
    chance = random.Random(seed)
    while True:
        subject, thing = chance.choice(NOUNS), chance.choice(NOUNS)
        yield f"The {subject} {chance.choice(VERBS)} a {thing} {chance.choice(PLACES)}."


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> pathlib.Path:
    """60 documents of 12 sentences."""
    said = sentences(0)
    documents = ["\n".join(itertools.islice(said, 12)) for _ in range(60)]
    path = tmp_path_factory.mktemp("golden") / "text.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    pairs = (f"{said_now}\t{said_now[::-1]}\n" for said_now in itertools.islice(said, 300))
    path.with_suffix(".tsv").write_text("".join(pairs), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def glue(tmp_path_factory) -> pathlib.Path:
    """Four tasks in GLUE's layout: 80 examples to learn from, 11 in each dev set; and a graph."""
    folder, said, chance = (
        tmp_path_factory.mktemp("golden") / "glue",
        sentences(1),
        random.Random(2),
    )
    mnli_columns = ["index", "sentence1", "sentence2", "gold_label"]
    answers = "entailment", "neutral", "contradiction"
    files = {
        "CoLA": (("train", "dev"), None, lambda i: ["x", i % 2, "", next(said)]),
        "book_review": (
            ("train", "dev", "test"),
            ["label", "text_a"],
            lambda i: [i % 2, next(said)],
        ),
        "STS-B": (
            ("train", "dev"),
            ["index", "sentence1", "sentence2", "score"],
            lambda i: [i, next(said), next(said), round(chance.uniform(0, 5), 2)],
        ),
        "MNLI": (
            ("train", "dev_matched", "dev_mismatched"),
            mnli_columns,
            lambda i: [i, next(said), next(said), answers[i % 3]],
        ),
    }
    for name, (splits, columns, row) in files.items():
        (folder / name).mkdir(parents=True)
        for split in splits:
            rows = [row(i) for i in range(80 if split == "train" else 11)]
            lines = ["\t".join(map(str, fields)) for fields in filter(None, [columns, *rows])]
            (folder / name / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    (folder / "kgs").mkdir()
    graph = [f"{noun}\tis a\tthing of {noun[0]}" for noun in NOUNS[::2]]
    (folder / "kgs" / "HowNet.spo").write_text("\n".join(graph) + "\n")
    return folder


@pytest.fixture(scope="module")
def other_data(tmp_path_factory) -> pathlib.Path:
    """What the other tasks read, each in the layout of its release."""
    folder, said = tmp_path_factory.mktemp("golden") / "other", sentences(3)
    texts = [[next(said) for _ in range(5)] for _ in range(16)]
    for split, some in (("train", texts), ("dev", texts[:4])):
        (folder / "squad").mkdir(parents=True, exist_ok=True)
        content = {"data": [{"paragraphs": [paragraph(*each) for each in enumerate(some)]}]}
        (folder / "squad" / f"{split}-v2.0.json").write_text(json.dumps(content))
        (folder / "race" / split / "high").mkdir(parents=True)
        for number, text in enumerate(some):
            path = folder / "race" / split / "high" / f"{number}.txt"
            path.write_text(json.dumps(article(number, text)))
        lines = ["\n".join(map(tagged, " ".join(text).split())) for text in some]
        (folder / "ner").mkdir(exist_ok=True)
        name = {"train": "train", "dev": "valid"}[split]
        (folder / "ner" / f"{name}.txt").write_text("\n\n".join([*lines, ""]))
    return folder


def paragraph(number: int, text: list[str]) -> dict:
    """Of SQuAD: one question that the text answers, and one that it does not."""
    subject = text[2].split()[1]
    found = {"id": f"{number}a", "question": f"Who {text[2].split()[2]}?", "is_impossible": False}
    found["answers"] = [{"text": subject, "answer_start": " ".join(text).find(subject)}]
    nothing = {"id": f"{number}b", "question": "Why?", "answers": [], "is_impossible": True}
    return {"context": " ".join(text), "qas": [found, nothing]}


def article(number: int, text: list[str]) -> dict:
    """Of RACE: a question whose answer is in the first sentence."""
    right = text[0].split()[1]
    options = [right, *[noun for noun in NOUNS if noun != right][:3]]
    options = options[number % 4 :] + options[: number % 4]
    content = {"article": " ".join(text), "questions": ["It is a _ ."], "options": [options]}
    return content | {"answers": ["ABCD"[options.index(right)]], "id": f"high{number}.txt"}


def tagged(word: str) -> str:
    """Of CoNLL: nouns are entities."""
    return f"{word} x B-NOUN" if word in NOUNS else f"{word} x O"


def known(recipe: str, fields: dict[str, str]) -> dict[str, str]:
    """Those fields that a recipe has: not every model has a longest sequence, nor reads text."""
    config = load_config(str(ROOT / "configs" / recipe))
    paths = {name: name.rpartition(".") for name in fields}
    return {
        name: fields[name]
        for name, (section, _, field) in paths.items()
        if "." in section or not section or field in config.get(section, {})
    }


def pretrain(
    recipe: str, text: pathlib.Path, workdir: pathlib.Path, **more: str
) -> pretraining_job.Job:
    """A run of 20 steps on the text."""
    fields = SHRUNK | {"data.input": f"({str(text)!r},)", "data.cache": str(workdir / "cache")}
    fields |= OWN.get(recipe, {}) | more
    if load_config(str(ROOT / "configs" / recipe)).data.text_format == "source-target":
        fields["data.input"] = f"({str(text.with_suffix('.tsv'))!r},)"
    config = load_config(str(ROOT / "configs" / recipe), known(recipe, fields).items())
    job = pretraining_job.prepare(config, str(workdir), say=lambda _: None)
    workdir.mkdir(exist_ok=True)
    (workdir / "config.json").write_text(to_json(config))
    assert pretraining.pretrain(job, Interrupt(), say=lambda _: None)
    return job


@pytest.mark.parametrize("recipe", PRETRAINING)
def test_a_pretraining_curve(recipe, text, tmp_path, regolden):
    pretrain(recipe, text, tmp_path)
    compare(f"pretrain_{recipe.partition('.')[0]}", read_metrics(tmp_path), regolden)


@pytest.fixture(scope="module")
def pretrained(text, tmp_path_factory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("golden") / "run"
    pretrain("bert.py:tiny", text, workdir)
    return workdir


@pytest.mark.parametrize("recipe", DISTILLATION)
def test_a_distillation_curve(recipe, text, pretrained, tmp_path, regolden):
    teacher = {f"objectives.{DISTILLATION[recipe]}.teacher": str(pretrained)}
    pretrain(recipe, text, tmp_path, **teacher)
    compare(f"pretrain_{recipe.partition('.')[0]}", read_metrics(tmp_path), regolden)


def fine_tune(
    recipe: str, init: str, glue: pathlib.Path, workdir: pathlib.Path, **more: str
) -> pathlib.Path:
    """One seed of a task; returns its folder."""
    fields = {"log_every": "1"} | more
    config = load_config(str(ROOT / "configs" / recipe), fields.items())
    job = finetuning.prepare(config, init=init, data=str(glue), workdir=str(workdir))
    assert job.config.num_train_steps < STEPS
    workdir.mkdir(exist_ok=True)
    (workdir / "config.json").write_text(to_json(job.config))
    assert finetuning.fine_tune(job, 0, Interrupt())
    return job.folder(0)


@pytest.mark.parametrize("task", TASKS)
def test_a_finetuning_curve(task, pretrained, glue, tmp_path, regolden):
    folder = fine_tune(TASKS[task], str(pretrained), glue, tmp_path)
    compare(f"finetune_{task}", read_metrics(folder), regolden)


@pytest.mark.parametrize("task", OTHER_TASKS)
def test_a_curve_of_another_task(task, pretrained, other_data, tmp_path, regolden):
    recipe, short = OTHER_TASKS[task]
    data = other_data / recipe.partition(".")[0]
    folder = fine_tune(recipe, str(pretrained), data, tmp_path, **short)
    compare(f"finetune_{task}", read_metrics(folder), regolden)


@pytest.fixture(scope="module")
def tuned(pretrained, glue, tmp_path_factory) -> pathlib.Path:
    """A teacher of a task."""
    workdir = tmp_path_factory.mktemp("golden") / "tuned"
    return fine_tune("glue.py:cola,tiny", str(pretrained), glue, workdir, keep_checkpoints="true")


@pytest.mark.parametrize("stage", STAGES)
def test_a_curve_of_distilling_a_task(stage, pretrained, tuned, glue, tmp_path, regolden):
    recipe, init = f"tinybert_glue.py:cola,{stage}_tiny", f"random:{pretrained}"
    teacher = {f"objectives.{STAGES[stage]}.teacher": str(tuned)}
    folder = fine_tune(recipe, init, glue, tmp_path, **teacher)
    compare(f"finetune_tinybert_{stage}", read_metrics(folder), regolden)


def compare(name: str, records: list[dict], regolden: bool) -> None:
    """Compares what is smooth in a run with the golden file, or rewrites that."""
    curves: dict[str, dict[str, float]] = {}
    for record in records:
        for metric, value in record.items():
            if metric.endswith(("loss", "gradient_norm", "learning_rate")):
                curves.setdefault(metric, {})[str(record["step"])] = value
    path = FOLDER / f"{name}.json"
    if regolden:
        rounded = {
            metric: {step: float(f"{value:.5g}") for step, value in curve.items()}
            for metric, curve in sorted(curves.items())
        }
        path.write_text(json.dumps(rounded, indent=1) + "\n")
    golden = json.loads(path.read_text())
    assert curves.keys() == golden.keys()
    for metric, curve in curves.items():
        assert curve.keys() == golden[metric].keys(), metric
        wanted = [golden[metric][step] for step in curve]
        np.testing.assert_allclose([*curve.values()], wanted, TOLERANCE, TOLERANCE, err_msg=metric)


def test_every_config_of_a_pretraining_has_a_curve():
    """A new file in configs/ belongs into PRETRAINING, unless it is another size of one there."""
    known = {recipe.partition(".")[0] for recipe in (*PRETRAINING, *DISTILLATION)}
    for path in (ROOT / "configs").glob("*.py"):
        other_size = re.search(r"configs/(\w+)\.py:\w+`, where its record stands", path.read_text())
        name = other_size[1] if other_size else path.stem
        assert name in {*known, *TUNING, "common"}, f"{path.name} has no golden curve"
