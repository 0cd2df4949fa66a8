"""A pretraining on a mixture of corpora: shares, phases, resuming, held-out text, mistakes."""

import itertools
import pathlib
import random

import numpy as np
import pytest

from bertjax.config import load_config, replace_fields
from bertjax.corpus.prepare import prepare
from bertjax.data.pipeline import Phase, phased_batches
from bertjax.errors import UserError
from bertjax.overrides import apply_overrides
from bertjax.runs import held_out, pretrain, pretrain_job
from bertjax.runtime.interrupt import Interrupt

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "configs" / "quickstart.py"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = {"a": "abcdefgh", "b": "stuvwxyz"}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Corpora of different letters; the second has longer documents, and one tenth held out.

    The third has the text of the first, and one tenth held out.
    """
    folder = tmp_path_factory.mktemp("corpora")
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *"abcdefghstuvwxyz."]) + "\n")
    draw = random.Random(1)
    for name, letters in LETTERS.items():
        sizes = (3, 9) if name == "a" else (20, 60)
        documents = [" ".join(draw.choices(letters, k=draw.randint(*sizes))) for _ in range(200)]
        (folder / f"{name}.txt").write_text("\n\n".join(documents))
    for name, text, fraction in (("a", "a", 0.0), ("b", "b", 0.1), ("c", "a", 0.1)):
        inputs = [str(folder / f"{text}.txt")]
        prepare(inputs, folder, folder / name, validation_fraction=fraction, workers=1)
    return folder


@pytest.fixture
def make(corpora, tmp_path):
    def call(entries=(("A", "a", 0.75), ("B", "b", 0.25)), **fields):
        entries = tuple((name, str(corpora / path), *rest) for name, path, *rest in entries)
        fields = {
            "data.mixture": entries,
            "data.corpus": "",
            "data.input": (),
            "data.format": "doc-sentences",
            "data.pair": "none",
            "data.phases": ((30, 12, 16), (20, 24, 16)),
            "num_train_steps": 50,
            "optimizer.warmup_steps": 1,
            "model.vocab_size": 22,
            **{name.replace("__", "."): value for name, value in fields.items()},
        }
        config = load_config(str(CONFIG))
        with config.unlocked():
            del config.objectives["sentence_pair"]
        config = replace_fields(config, fields)
        return pretrain_job.prepare(config, str(tmp_path / "run"), lambda line: None)

    return call


def rows_of(job, start_step=0):
    phases = [
        Phase(phase.steps, job.examples(job.corpus, phase), phase.batch_size)
        for phase in job.phases
    ]
    with phased_batches(phases, start_step=start_step) as batches:
        return list(itertools.islice(batches, 50))


def tokens_of(batch, job):
    """Number of tokens of each corpus in a batch."""
    first = job.tokenizer.encode_batch(["a"])[0][0]
    is_a = (batch["input_ids"] >= first) & (batch["input_ids"] < first + 8)
    has_a = is_a.any(axis=1)
    sizes = batch["attention_mask"].sum(axis=1)
    return np.array([sizes[has_a].sum(), sizes[~has_a].sum()])


def test_the_shares_of_tokens_are_those_of_each_phase_and_in_the_summary(make):
    job = make((("A", "a", (0.75, 0.2)), ("B", "b", (0.25, 0.8))))
    found = rows_of(job)
    counts = np.array([tokens_of(batch, job) for _, batch in found])
    first, second = counts[:30].sum(axis=0), counts[30:].sum(axis=0)
    assert abs(first[0] / first.sum() - 0.75) < 0.05
    assert abs(second[0] / second.sum() - 0.2) < 0.05
    usage = job.mixture_usage()
    share = counts.sum(axis=0) / counts.sum()
    assert abs(usage["A"]["token_share"] - share[0]) < 0.02
    assert usage["A"]["examples"] + usage["B"]["examples"] == 50 * 16
    part = job.mixture_usage(37)
    assert part["A"]["examples"] + part["B"]["examples"] == 37 * 16
    assert part["A"]["tokens"] < usage["A"]["tokens"]
    assert f"A: {usage['A']['token_share']:.1%} of the tokens" in pretrain_job.description(job)
    later = rows_of(job, start_step=37)
    assert later[0][0] == 37
    assert np.array_equal(later[0][1]["input_ids"], found[37][1]["input_ids"])


def test_without_weights_shares_are_those_of_the_tokens_raised_by_the_temperature(make):
    entries = (("A", "a"), ("B", "b"))
    job = make(entries)
    sizes = [part.num_tokens for part in job.corpus.parts.values()]
    for temperature in (1.0, 3.0):
        job = make(entries, data__mixture_temperature=temperature)
        powers = np.array(sizes) ** (1 / temperature)
        assert abs(job.mixture_usage()["A"]["token_share"] - powers[0] / powers.sum()) < 0.04
    assert job.held_out.num_documents == job.held_out.parts["B"].num_documents
    assert list(job.held_out.parts) == ["B"]
    assert job.provenance["corpus"] == job.corpus.fingerprint
    assert job.corpus.token_counts.sum() == sum(sizes)


def test_the_identity_of_a_run_is_its_weights_and_no_paths(make, corpora, tmp_path):
    (tmp_path / "moved").symlink_to(corpora / "b")
    entries = [(("A", "a", 0.75), ("B", path, 0.25)) for path in ("b", tmp_path / "moved")]
    here, moved = map(make, entries)
    assert moved.provenance == here.provenance
    assert moved.former_provenance != here.former_provenance
    other = make((("A", "a", 0.5), ("B", "b", 0.5)))
    assert {k for k, v in here.provenance.items() if other.provenance[k] != v} == {"config"}


def test_each_corpus_with_held_out_text_is_measured(make):
    job = make((("B", "b", 0.5), ("C", "c", 0.5)), model__precision="float32")
    state = job.create_state()
    bias = state.params["mlm"]["bias"]
    first = job.tokenizer.encode_batch(["a"])[0][0]
    likely = bias.at[first : first + 8].add(3.0)
    state = state.with_params(state.params | {"mlm": state.params["mlm"] | {"bias": likely}})
    means = pretrain._evaluate(job, Interrupt(), state)
    both, of_b, of_c = (means[f"held_out/{name}mlm/loss"] for name in ("", "B/", "C/"))
    # The letters of C have larger scores by 3.
    assert of_c < both < of_b
    assert of_c + 2 < of_b
    summary = {"B_mlm_loss": of_b, "mlm_loss": both, "B_mlm_accuracy": 0.25, "unigram_loss": 2.0}
    rows = held_out.summary_rows(job.config, summary, "B")
    assert [(metric.name, value, base) for metric, value, base in rows] == [
        ("loss", of_b, None),
        ("accuracy", 0.25, None),
    ]


def test_mistakes_name_the_corpus(make, corpora):
    with pytest.raises(UserError, match=r"config\.data\.mixture, D: .*expected a prepared corpus"):
        make((("A", "a", 0.5), ("D", "d", 0.5)))
    with pytest.raises(UserError, match=r"sum 1, got 0\.9 in phase 1"):
        make((("A", "a", 0.5), ("B", "b", 0.4)))
    with pytest.raises(
        UserError, match="got 3 weights for A, expected 1, or one for each of the 2"
    ):
        make((("A", "a", (0.5,) * 3), ("B", "b", (0.5,) * 3)))
    overrides = [("data.input", "('python-docs',)"), ("data.mixture", "(('A','a'),('B','b'))")]
    with pytest.raises(UserError, match=r"config\.data\.input has no effect"):
        apply_overrides(load_config(str(CONFIG)), overrides)
    with pytest.raises(UserError, match=r"data\.mixture is not supported with format stream"):
        make(data__format="stream")


def test_a_text_field_with_a_prepared_corpus_is_refused(make, corpora):
    with pytest.raises(UserError, match="text_field='body' has no effect"):
        make((), data__corpus=str(corpora / "b"), data__text_field="body")
