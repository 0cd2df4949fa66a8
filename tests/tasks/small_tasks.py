"""Small data of four tasks and a model with random weights; as a script, one of two hosts."""

import json
import pathlib
import sys

import jax
import numpy as np

RECIPES = {
    "rte": "glue.py:rte,tiny",
    "squad2": "squad.py:squad2,tiny",
    "ner": "ner.py:conll2003,tiny",
    "race": "race.py:race,tiny",
}
FIELDS = {"squad2": {"null_threshold": 0.0}}  # the best one for random weights answers nothing
TAGS = {"Anna": "B-PER", "Berg": "B-ORG", "Oslo": "B-LOC", "Lyon": "B-LOC"}
WORDS = [
    "the",
    "mill",
    "Anna",
    "Berg",
    "old",
    "by",
    "Oslo",
    "river",
    "came",
    "from",
    "Lyon",
    "north",
]
SIZE = 11
MODEL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "precision": "float32",
}
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"


def text(number: int) -> str:
    """Random words, three to sixteen; all texts are different."""
    return " ".join(WORDS[(number * 5 + i * i) % len(WORDS)] for i in range(3 + number * 7 % 14))


def write(folder: pathlib.Path, *, backwards: bool = False) -> None:
    """Write the files of all tasks, optionally with the dev split in reverse order."""
    from bertjax.tokenizers import tokenizer as tokenizers

    tokenizer = tokenizers.train([" ".join(WORDS)] * 4, kind="wordpiece", vocab_size=70)
    tokenizer.save(str(folder / "tokenizer"))
    for split in ("train", "dev"):
        numbers = list(range(SIZE))
        numbers = numbers[::-1] if backwards and split == "dev" else numbers
        for put in (_put_rte, _put_squad, _put_ner, _put_race):
            put(folder, split, numbers)


def _put_rte(folder, split, numbers):
    (folder / "RTE").mkdir(exist_ok=True)
    labels = ["entailment", "not_entailment"]
    rows = [f"{n}\t{text(n)}\t{text(n + 3)}\t{labels[n % 3 == 0]}" for n in numbers]
    lines = ["index\tsentence1\tsentence2\tlabel", *rows, ""]
    (folder / "RTE" / f"{split}.tsv").write_text("\n".join(lines))


def _put_squad(folder, split, numbers):
    (folder / "squad2").mkdir(exist_ok=True)
    paragraphs = []
    for n in numbers:
        context = f"{text(n)} {text(n + 1)} {text(n + 2)}"
        answer = {
            "text": context.split()[2],
            "answer_start": len(" ".join(context.split()[:2])) + 1,
        }
        question = {"id": f"q{n}", "question": text(n + 5), "answers": [answer] * (n % 4 > 0)}
        question["is_impossible"] = not question["answers"]
        paragraphs.append({"context": context, "qas": [question]})
    content = json.dumps({"data": [{"paragraphs": paragraphs}]})
    (folder / "squad2" / f"{split}-v2.0.json").write_text(content)


def _put_ner(folder, split, numbers):
    (folder / "ner").mkdir(exist_ok=True)
    blocks = ["\n".join(f"{w} {TAGS.get(w, 'O')}" for w in text(n).split()) for n in numbers]
    name = {"train": "train", "dev": "valid"}[split]
    (folder / "ner" / f"{name}.txt").write_text("\n\n".join([*blocks, ""]))


def _put_race(folder, split, numbers):
    level = folder / "race" / split / "middle"
    level.mkdir(parents=True)
    for place, n in enumerate(numbers):
        content = {"id": f"m{n}", "article": text(n), "questions": [f"{text(n + 1)} _ ."]}
        content |= {"options": [[text(n + i) for i in range(2, 6)]], "answers": ["ABCD"[n % 4]]}
        (level / f"{place}.txt").write_text(json.dumps(content))


def evaluate(
    folder: pathlib.Path,
    task: str,
    out: pathlib.Path,
    devices: int = 1,
    **data,
) -> dict:
    """Scores of the dev split, and the prediction of each example by its name."""
    from bertjax.train import evaluate as train_evaluate
    from bertjax.train import sharding

    dataset, pretrainer, params = prepare(folder, task, data)
    sizes = {"data": devices, "fsdp": 1, "tensor": 1, "sequence": 1}
    mesh = sharding.make_mesh(sizes, jax.devices()[:devices])
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    batches = dataset.batches["dev"]
    found = train_evaluate.predict(
        train_evaluate.make_predict_step(pretrainer, mesh),
        jax.device_put(params, whole),
        batches.evaluation_batches(sharding.local_rows(batches.batch_size, mesh)),
        batches.num_examples,
        mesh,
    )
    scores = dataset.score("dev", found)
    dataset.write("dev", found, out)
    return {"scores": scores, "predictions": READERS[task](out), "batches": batches}


def where(folder: pathlib.Path, task: str) -> str:
    """The value of `--data`."""
    return str(folder if task == "rte" else folder / task)


def recipe(task: str, data: dict):
    """The recipe of a task, with changed fields of `config.data`."""
    from bertjax import config as configs

    config = configs.load_config(str(CONFIGS / RECIPES[task]), [])
    with config.unlocked():
        config.data.update(FIELDS.get(task, {}) | data)
    return config


def prepare(folder: pathlib.Path, task: str, data: dict):
    """The examples, the model and its weights."""
    from bertjax import build, catalog
    from bertjax import config as configs
    from bertjax.huggingface import importing
    from bertjax.pretrainer import Pretrainer
    from bertjax.runs import finetune_job
    from bertjax.tokenizers import tokenizer as tokenizers
    from bertjax.train.checkpoint import trees

    config, tokenizer = recipe(task, data), tokenizers.load(folder / "tokenizer")
    model = configs.load_config(str(CONFIGS / "bert.py:tiny"), []).model
    with config.unlocked(), model.unlocked():
        model.update(MODEL, vocab_size=tokenizer.vocab_size)
        config.model = model
    dataset = finetune_job.read(config, where(folder, task), tokenizer)
    fields = {name: value for name, value in config.task.items() if name != "name"}
    fields |= dataset.task_fields
    make = build.construct(
        catalog.load("tasks", config.task.name, "head").Task, fields, "config.task"
    )
    pretrainer = Pretrainer(build.encoder(config.model), {config.task.name: make})
    random = np.random.default_rng(0)
    params = {
        name: random.normal(0, 0.3 if name.endswith("bias") else 1, shape).astype(np.float32)
        for name, shape in sorted(importing.parameter_shapes(pretrainer).items())
    }
    return dataset, pretrainer, trees.nest(params)


def _sentence_predictions(out):
    blocks = (out / "dev.txt").read_text().strip().split("\n\n")
    rows = [[line.split() for line in block.split("\n")] for block in blocks]
    return {" ".join(row[0] for row in block): [row[-1] for row in block] for block in rows}


READERS = {
    "rte": lambda out: dict(
        line.split("\t") for line in (out / "dev" / "RTE.tsv").read_text().splitlines()[1:]
    ),
    "squad2": lambda out: json.loads((out / "dev" / "predictions.json").read_text()),
    "ner": _sentence_predictions,
    "race": lambda out: json.loads((out / "dev.json").read_text()),
}


def main(port: str, rank: str, folder: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank))
    out = pathlib.Path(folder) / f"host{rank}"
    for task in RECIPES:
        count = jax.device_count()
        made = evaluate(pathlib.Path(folder), task, out / task, count, eval_batch_size=8)
        (out / f"{task}.json").write_text(
            json.dumps({k: made[k] for k in ("scores", "predictions")})
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
