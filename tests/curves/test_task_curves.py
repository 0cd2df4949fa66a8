"""Golden curves of fine-tuning: a few steps of every kind of task."""

import json
import pathlib
import random

import pytest

from bertjax.config import load_config, to_json
from bertjax.runs import finetune, finetune_job
from bertjax.runtime.interrupt import Interrupt

CONFIGS = pathlib.Path(__file__).resolve().parent.parent.parent / "configs"
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
    "wic": ("superglue.py:wic,tiny", SHORT),
    "pairs": ("pairs.py:tiny", SHORT),
    "cross_encoder": ("cross_encoder.py:tiny", SHORT),
    "colbert": ("colbert.py:tiny", SHORT),
}
"""Spans, words, words by features, choices, two marked words, embeddings, and pairs read together
and token by token; each with what makes it short."""
STAGES = {"layers": "layer_matching", "prediction": "soft_targets"}
"""Of tinybert_glue.py, each with the objective that asks a teacher."""


@pytest.fixture(scope="module")
def glue(tmp_path_factory, sentences, nouns) -> pathlib.Path:
    """Four tasks in GLUE's layout: 80 training examples, 11 in each dev set; and a graph."""
    folder, output, chance = (
        tmp_path_factory.mktemp("golden") / "glue",
        sentences(1),
        random.Random(2),
    )
    mnli_columns = ["index", "sentence1", "sentence2", "gold_label"]
    answers = "entailment", "neutral", "contradiction"
    files = {
        "CoLA": (("train", "dev"), None, lambda i: ["x", i % 2, "", next(output)]),
        "book_review": (
            ("train", "dev", "test"),
            ["label", "text_a"],
            lambda i: [i % 2, next(output)],
        ),
        "STS-B": (
            ("train", "dev"),
            ["index", "sentence1", "sentence2", "score"],
            lambda i: [i, next(output), next(output), round(chance.uniform(0, 5), 2)],
        ),
        "MNLI": (
            ("train", "dev_matched", "dev_mismatched"),
            mnli_columns,
            lambda i: [i, next(output), next(output), answers[i % 3]],
        ),
    }
    for name, (splits, columns, row) in files.items():
        (folder / name).mkdir(parents=True)
        for split in splits:
            rows = [row(i) for i in range(80 if split == "train" else 11)]
            lines = ["\t".join(map(str, fields)) for fields in filter(None, [columns, *rows])]
            (folder / name / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    (folder / "kgs").mkdir()
    graph = [f"{noun}\tis a\tthing of {noun[0]}" for noun in nouns[::2]]
    (folder / "kgs" / "HowNet.spo").write_text("\n".join(graph) + "\n")
    return folder


@pytest.fixture(scope="module")
def other_data(tmp_path_factory, sentences, nouns) -> pathlib.Path:
    """Data of the other tasks, each in its released layout."""
    folder, output = tmp_path_factory.mktemp("golden") / "other", sentences(3)
    texts = [[next(output) for _ in range(5)] for _ in range(16)]
    for split, some in (("train", texts), ("dev", texts[:4])):
        (folder / "squad").mkdir(parents=True, exist_ok=True)
        content = {"data": [{"paragraphs": [paragraph(*each) for each in enumerate(some)]}]}
        (folder / "squad" / f"{split}-v2.0.json").write_text(json.dumps(content))
        (folder / "race" / split / "high").mkdir(parents=True)
        for number, text in enumerate(some):
            path = folder / "race" / split / "high" / f"{number}.txt"
            path.write_text(json.dumps(article(number, text, nouns)))
        lines = [tagged(" ".join(text).split(), nouns) for text in some]
        (folder / "ner").mkdir(exist_ok=True)
        name = {"train": "train", "dev": "valid"}[split]
        (folder / "ner" / f"{name}.txt").write_text("\n\n".join([*lines, ""]))
        marked = [marked_words(*each) for each in enumerate(some)]
        paired = [{"anchor": text[0], "positive": text[1], "negative": text[2]} for text in some]
        for path, rows in (
            (folder / "superglue" / "WiC" / f"{'val' if split == 'dev' else split}.jsonl", marked),
            (folder / "pairs" / f"{split}.jsonl", paired),
            (folder / "cross_encoder" / f"{split}.jsonl", paired),
            (folder / "colbert" / f"{split}.jsonl", paired),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(map(json.dumps, rows)))
    return folder


def paragraph(number: int, text: list[str]) -> dict:
    """A SQuAD paragraph with an answerable and an unanswerable question."""
    subject = text[2].split()[1]
    found = {"id": f"{number}a", "question": f"Who {text[2].split()[2]}?", "is_impossible": False}
    found["answers"] = [{"text": subject, "answer_start": " ".join(text).find(subject)}]
    nothing = {"id": f"{number}b", "question": "Why?", "answers": [], "is_impossible": True}
    return {"context": " ".join(text), "qas": [found, nothing]}


def article(number: int, text: list[str], nouns: list[str]) -> dict:
    """A RACE article with a question whose answer is in the first sentence."""
    right = text[0].split()[1]
    options = [right, *[noun for noun in nouns if noun != right][:3]]
    options = options[number % 4 :] + options[: number % 4]
    content = {"article": " ".join(text), "questions": ["It is a _ ."], "options": [options]}
    return content | {"answers": ["ABCD"[options.index(right)]], "id": f"high{number}.txt"}


def marked_words(number: int, text: list[str]) -> dict:
    """A record of WiC that marks the second word of two sentences."""
    record = {"word": text[0].split()[1], "idx": number, "label": number % 2 == 0, "version": 1.1}
    for n, sentence in enumerate(text[:2], 1):
        first, second, *_ = sentence.split()
        start = len(first) + 1
        record |= {f"sentence{n}": sentence, f"start{n}": start, f"end{n}": start + len(second)}
    return record


def tagged(words: list[str], nouns: list[str]) -> str:
    """A CoNLL sentence in which nouns are entities."""
    return "\n".join(f"{word} x {'B-NOUN' if word in nouns else 'O'}" for word in words)


@pytest.fixture(scope="session")
def fine_tune(devices_of):
    """`fine_tune(recipe, init, data, workdir, **fields)` trains one seed; returns its folder."""

    def run(recipe: str, init: str, data: pathlib.Path, workdir: pathlib.Path, **more: str):
        fields = {"log_every": "1"} | more
        config = load_config(str(CONFIGS / recipe), fields.items())
        with devices_of(recipe):
            job = finetune_job.prepare(config, init=init, data=str(data), workdir=str(workdir))
        assert job.config.num_train_steps < 20
        workdir.mkdir(exist_ok=True)
        (workdir / "config.json").write_text(to_json(job.config))
        assert finetune.train_seed(job, 0, Interrupt())
        return job.folder(0)

    return run


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.slow
def test_a_finetuning_curve(task, pretrained, glue, tmp_path, fine_tune, follows):
    folder = fine_tune(TASKS[task], str(pretrained), glue, tmp_path)
    follows(f"finetune_{task}", folder)


@pytest.mark.parametrize("task", OTHER_TASKS)
@pytest.mark.slow
def test_a_curve_of_another_task(task, pretrained, other_data, tmp_path, fine_tune, follows):
    recipe, short = OTHER_TASKS[task]
    data = other_data / recipe.partition(".")[0]
    folder = fine_tune(recipe, str(pretrained), data, tmp_path, **short)
    follows(f"finetune_{task}", folder)


@pytest.fixture(scope="module")
def tuned(pretrained, glue, tmp_path_factory, fine_tune) -> pathlib.Path:
    """A teacher that is fine-tuned on a task."""
    workdir = tmp_path_factory.mktemp("golden") / "tuned"
    return fine_tune("glue.py:cola,tiny", str(pretrained), glue, workdir, keep_checkpoints="true")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.slow
def test_a_curve_of_distilling_a_task(stage, pretrained, tuned, glue, tmp_path, fine_tune, follows):
    recipe, init = f"tinybert_glue.py:cola,{stage}_tiny", f"random:{pretrained}"
    teacher = {f"objectives.{STAGES[stage]}.teacher": str(tuned)}
    folder = fine_tune(recipe, init, glue, tmp_path, **teacher)
    follows(f"finetune_tinybert_{stage}", folder)
