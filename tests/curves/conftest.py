"""Runs of twenty steps of shrunk recipes, compared with golden curves in tests/golden/.

From text to tokenizer, corpus, batches, masks, loss, update and held-out measurement: any change of
a run's numbers changes a curve. If it is intended, `tools/regolden` rewrites the curves, and the
commit message gives the reason. Types are float32, and the tolerance is that of another processor's
or another release's order of summation.
"""

import contextlib
import itertools
import json
import pathlib
import random

import numpy as np
import pytest
from ml_collections import ConfigDict

from bertjax import build
from bertjax.config import load_config, to_json
from bertjax.runs import pretrain as runs_pretrain
from bertjax.runs import pretrain_job
from bertjax.runtime.interrupt import Interrupt
from bertjax.train.metric_records import read_metrics

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
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
    "optimizer.restarts": "()",
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
OWN = {
    # Two microbatches on eight devices; a position offset of 2; 256 bytes and five special tokens
    # in addition to the merges.
    "roberta.py:tiny": {
        "data.batch_size": "16",
        "model.max_position_embeddings": "34",
        "model.vocab_size": "300",
        "tokenizer.vocab_size": "300",
    },
    # Two phases, the second with its own warmup.
    "large_batch.py:lamb_64k": {
        "data.phases": "((12, 16, 16), (8, 32, 8))",
        "optimizer.restarts": "((0.005, 2),)",
        "data.microbatches": "1",
    },
    # SentencePiece's unigram model cannot fill a larger vocabulary from this text.
    "albert.py:tiny": {"model.vocab_size": "60", "tokenizer.vocab_size": "60"},
    "deberta.py:tiny": {"model.vocab_size": "60", "tokenizer.vocab_size": "60"},
    # Likewise; and sentinels after the vocabulary.
    "span_corruption.py:tiny": {
        "model.vocab_size": "80",
        "tokenizer.vocab_size": "60",
        "objectives.span_corruption.num_sentinels": "20",
    },
    "text_infilling.py:tiny": {
        "data.batch_size": "16",
        "model.vocab_size": "300",
        "tokenizer.vocab_size": "300",
    },
    # Likewise; and a memory shorter than a document.
    "xlnet.py:tiny": {
        "model.vocab_size": "60",
        "tokenizer.vocab_size": "60",
        "model.mem_len": "24",
    },
    # Byte-level BPE, as roberta.py; and packed documents, with gpt2.py without attention across
    # them.
    "gpt1.py:tiny": {"model.vocab_size": "300", "tokenizer.vocab_size": "300"},
    "language_models.py:gpt": {"model.vocab_size": "300", "tokenizer.vocab_size": "300"},
    "gpt3.py:tiny": {
        "data.batch_size": "16",
        "model.vocab_size": "300",
        "tokenizer.vocab_size": "300",
    },
    # Likewise; and as many causal examples as masked ones.
    "gpt_bert.py:tiny": {
        "data.batch_size": "16",
        "model.vocab_size": "300",
        "tokenizer.vocab_size": "300",
        "objectives.mntp.causal_share": "0.5",
    },
    "gpt2.py:tiny": {
        "data.batch_size": "16",
        "data.format": "packed-apart",
        "model.vocab_size": "300",
        "tokenizer.vocab_size": "300",
    },
    # An input vocabulary larger than the softmax; rows that continue documents.
    "elmo.py:tiny": {
        "model.vocab_size": "30",
        "tokenizer.vocab_size": "30",
        "objectives.bidirectional_lm.softmax_size": "20",
        "model.filters": "((1, 4), (3, 6))",
        "model.max_chars_per_word": "12",
        "data.max_seq_length": "16",
    },
    # A layer after the first whole cycle, and windows of several blocks.
    "modernbert.py:tiny": {
        "model.vocab_size": "261",
        "tokenizer.vocab_size": "261",
        "data.microbatches": "1",
        "model.num_hidden_layers": "5",
        "model.local_attention": "6",
    },
    # Twice as wide as the base model, in heads of twice the width.
    "mup.py:256": {"model.mup_base_width": "12", "model.mup_base_heads": "3"},
    "vit.py:tiny": {"data.input": "('digits',)", "data.max_seq_length": "1"},
}
"""Fields of single recipes, in addition to SHRUNK."""
DIVIDED = {
    *("quickstart.py", "bert.py:tiny", "large_batch.py:lamb_64k"),
    *("glue.py:mnli,tiny", "pairs.py:tiny", "colbert.py:tiny"),
}
"""Recipes that run on all eight devices; the others on one, for which steps compile faster."""
NOUNS = ["cat", "dog", "house", "river", "teacher", "letter", "garden", "window", "engine", "song"]
VERBS = ["sees", "finds", "likes", "carries", "follows", "leaves", "paints", "remembers"]
PLACES = ["in the north", "near a wall", "after dinner", "without a word", "on the road"]


@pytest.fixture(scope="session")
def nouns() -> list[str]:
    """Subjects and objects of the sentences."""
    return NOUNS


@pytest.fixture(scope="session")
def sentences():
    """`sentences(seed)` yields sentences of a few words, endlessly and reproducibly."""

    def log(seed: int):
        chance = random.Random(seed)
        while True:
            subject, thing = chance.choice(NOUNS), chance.choice(NOUNS)
            yield f"The {subject} {chance.choice(VERBS)} a {thing} {chance.choice(PLACES)}."

    return log


@pytest.fixture(scope="module")
def text(tmp_path_factory, sentences) -> pathlib.Path:
    """60 documents of 12 sentences."""
    output = sentences(0)
    documents = ["\n".join(itertools.islice(output, 12)) for _ in range(60)]
    path = tmp_path_factory.mktemp("golden") / "text.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    pairs = (f"{said_now}\t{said_now[::-1]}\n" for said_now in itertools.islice(output, 300))
    path.with_suffix(".tsv").write_text("".join(pairs), encoding="utf-8")
    return path


def known(recipe: str, fields: dict[str, str]) -> dict[str, str]:
    """Those fields that a recipe has: not every model has a longest sequence, nor reads text."""
    config = load_config(str(ROOT / "configs" / recipe))
    paths = {name: name.rpartition(".") for name in fields}
    return {
        name: fields[name]
        for name, (section, _, field) in paths.items()
        if "." in section or not section or field in config.get(section, {})
    }


@pytest.fixture(scope="session")
def shrunk():
    """`shrunk(recipe, **fields)`: the config of a small run."""

    def load(recipe: str, **more: str) -> ConfigDict:
        fields = SHRUNK | more | OWN.get(recipe, {})
        if fields["data.phases"] != "()":  # phases have their own
            del fields["data.max_seq_length"], fields["data.batch_size"]
        return load_config(str(ROOT / "configs" / recipe), known(recipe, fields).items())

    return load


@pytest.fixture(scope="session")
def devices_of(mesh_on_all_devices):
    """`with devices_of(recipe)`: runs prepared in this context use the devices of a recipe."""

    @contextlib.contextmanager
    def choose(recipe: str):
        with pytest.MonkeyPatch.context() as patch:
            if recipe in DIVIDED:
                patch.setattr(build, "mesh_on", mesh_on_all_devices)
            yield

    return choose


@pytest.fixture(scope="module")
def pretrain(text, shrunk, devices_of):
    """`pretrain(recipe, workdir, **fields)`: a run of 20 steps on the text."""

    def run(recipe: str, workdir: pathlib.Path, **more: str) -> pretrain_job.Job:
        pairs = load_config(str(ROOT / "configs" / recipe)).data.text_format == "source-target"
        path = text.with_suffix(".tsv") if pairs else text
        places = {"data.input": f"({str(path)!r},)", "data.cache": str(workdir / "cache")}
        config = shrunk(recipe, **places | more)
        with devices_of(recipe):
            job = pretrain_job.prepare(config, str(workdir), log=lambda _: None)
        workdir.mkdir(exist_ok=True)
        (workdir / "config.json").write_text(to_json(config))
        summary, _ = runs_pretrain.train_job(job, Interrupt(), lambda _: None, lambda *_: [])
        assert summary
        return job

    return run


@pytest.fixture(scope="module")
def pretrained(pretrain, tmp_path_factory) -> pathlib.Path:
    """A run of bert.py:tiny."""
    workdir = tmp_path_factory.mktemp("golden") / "run"
    pretrain("bert.py:tiny", workdir)
    return workdir


@pytest.fixture(scope="session")
def follows(regolden):
    """`follows(name, workdir)`: compare smooth metrics of a run with golden/, or rewrite those."""

    def compare(name: str, workdir: pathlib.Path) -> None:
        curves: dict[str, dict[str, float]] = {}
        for record in read_metrics(workdir):
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
            expected = golden[metric]
            assert curve.keys() == expected.keys(), metric
            got, expected = [*curve.values()], [expected[step] for step in curve]
            np.testing.assert_allclose(got, expected, TOLERANCE, TOLERANCE, err_msg=metric)

    return compare
