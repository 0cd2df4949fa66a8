"""bertjax fill-mask: probabilities at [MASK] are those of the model, for one text or several."""

import io
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import cli
from bertjax.huggingface import importing
from bertjax.inference import fill_mask

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]


@pytest.fixture(scope="module")
def run(save_pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fill")
    importing.write(importing.read(save_pretrained(folder / "hf_model")), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def filler(run):
    return fill_mask.load(str(run), top_k=31)


def by_hand(filler, ids, place):
    """Probabilities of all tokens at a position of one row."""

    def method(module, batch):
        sequence = module.encoder(batch, train=False).sequence
        return module.mlm.logits(module.encoder, sequence, jnp.array([[place]]))[0, 0]

    batch = {"input_ids": jnp.array([ids]), "attention_mask": jnp.ones((1, len(ids)), bool)}
    logits = filler.pretrainer.apply({"params": filler.params}, batch, method=method)
    return np.asarray(jax.nn.softmax(logits))


def test_probabilities_are_those_of_the_model(filler):
    texts = ["a b [MASK] d", "[MASK] x y z q r s t [MASK]"]
    found = filler.fill(texts)
    assert [len(places) for places in found] == [1, 2]
    rows = ([2, 5, 6, 4, 8, 3], [2, 4, 28, 29, 30, 21, 22, 23, 24, 4, 3])
    for row, places in zip(rows, found, strict=True):
        for place, candidates in zip(np.flatnonzero(np.equal(row, 4)), places, strict=True):
            expected = by_hand(filler, row, place)
            values = [value for _, value in candidates]
            np.testing.assert_allclose(values, np.sort(expected)[::-1], rtol=1e-4)
            best = int(expected.argmax())
            assert candidates[0][0] == filler.tokenizer.ids_to_pieces([best])[0]


def test_the_precision_of_the_run_can_be_changed(run):
    exact, narrow = (
        fill_mask.load(str(run), 1, precision).fill(["a b [MASK] d"])
        for precision in ("float32", "bfloat16")
    )
    assert 0 < abs(exact[0][0][0][1] - narrow[0][0][0][1]) < 0.1


class StubPretrainer:
    """A stub of a pretrainer: one token per row is masked and predicted with probability 1."""

    def __init__(self, places):
        self.places = jnp.asarray(places)

    def apply(self, variables, batch, method):
        labels = jnp.take_along_axis(batch["input_ids"], self.places[:, None], axis=1)
        return self.places, labels[:, 0], jnp.ones(labels.shape), labels


def test_predictions_have_up_to_twelve_tokens_of_context_on_either_side(filler):
    letters, first, places = LETTERS[:20], WORDS.index("a"), [1, 6, 12, 13, 20]
    ids = np.array([[2, *range(first, first + 20), 3, 0]] * len(places), np.int32)
    batch = {"input_ids": ids, "attention_mask": ids > 0, "example_id": np.arange(len(places))}
    found = fill_mask.predict_masked(StubPretrainer(places), {}, batch, filler.tokenizer, seed=0)
    for place, guess in zip(places, found, strict=True):
        letter = place - 1  # [CLS] comes before all of them
        assert guess.before == " ".join(letters[max(letter - 12, 0) : letter])
        assert guess.after == " ".join(letters[place : place + 12])
        assert guess.candidates == ((letters[letter], 1.0),)
        assert guess.truth == letters[letter]


def run_cli(capsys, *words):
    status = cli.main(["fill-mask", *map(str, words)])
    return status, *capsys.readouterr()


def test_texts_are_arguments_or_lines_of_a_file(run, capsys, monkeypatch, tmp_path):
    texts = ["a [MASK] c", "[MASK] b"]
    status, plain, _ = run_cli(capsys, "--model", run, "--top_k", 2, *texts)
    assert status == 0
    assert [line for line in plain.splitlines() if not line.startswith(" ")] == texts
    stream = io.TextIOWrapper(io.BytesIO("\n".join([texts[0], "", texts[1]]).encode()))
    monkeypatch.setattr(sys, "stdin", stream)
    status, lines, _ = run_cli(capsys, "--model", run, "--top_k", 2, "--json", "--batch_size", 1)
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [row["text"] for row in rows] == texts
    shown = [line.split() for line in plain.splitlines() if line.startswith(" ")]
    assert [token for row in rows for token, _ in row["candidates"][0]] == [
        line[-1] for line in shown
    ]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    _, of_file, _ = run_cli(capsys, "--model", run, "--top_k", 2, "--input", tmp_path / "texts.txt")
    assert of_file == plain


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a b"], "text 1 has no masked token: got 'a b', expected at least one [MASK]"),
        (
            ["a [MASK]", "--top_k", "99"],
            "top_k: got 99, expected an integer from 1 to the vocabulary size 31",
        ),
        (
            ["[MASK] " + " ".join(LETTERS)],
            "text 1 is too long: got 29 tokens, expected at most 24; shorten it",
        ),
        (["a [MASK]", "--input", "b.txt"], "--input: got b.txt, expected none with a TEXT"),
        (["a [MASK]", "--batch_size", "0"], "--batch_size: got 0, expected an integer >= 1"),
    ],
)
def test_a_user_error_is_one_line(run, capsys, words, message):
    status, out, errors = run_cli(capsys, "--model", run, *words)
    assert (status, out) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1
