"""Pseudo-log-likelihoods of sentences, and minimal pairs."""

import json
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.errors import UserError
from bertjax.huggingface import run_cache
from bertjax.inference import minimal_pairs, sentence_scores
from bertjax.inference.minimal_pairs import MinimalPair
from bertjax.tokenizers import tokenizer as tokenizers

RUN = pathlib.Path(__file__).parent.parent / "data_fixtures" / "saved_runs" / "run"
SENTENCES = ["the cat sat on the mat", "dogs", "nine unbelievable elephants", "the the the", "a b"]


def by_hand(ids, special_ids, begins_word, mask_id, log_probs, start=0):
    """One token after the other; later ones up to the next that `begins_word` are masked too.

    The first `start` tokens, and special ones, are not scored.

    `log_probs` is the function from the ids of a sequence [L] to log probabilities [L V].
    """
    total = 0.0
    for at in range(start, len(ids)):
        if ids[at] in special_ids:
            continue
        masked, end = list(ids), at + 1
        while not begins_word[ids[end]]:
            end += 1
        masked[at:end] = [mask_id] * (end - at)
        total += float(log_probs(masked)[at, ids[at]])
    return total


@pytest.mark.parametrize("within_word", [pytest.param(False, marks=pytest.mark.slow), True])
def test_each_token_is_predicted_from_the_others(within_word):
    bert = bertjax.load(RUN)
    scorer = sentence_scores.load(run_cache.find_run(str(RUN)), "float32", within_word=within_word)
    # Several batches, of two lengths.
    rows = sentence_scores.encode(scorer, SENTENCES)
    starts = [2, 0, 1, 0, 1]
    whole, rest = (scorer.score(rows, first, 7) for first in ([0] * 5, starts))
    tokenizer = scorer.tokenizer
    begins = tokenizer.word_starts if within_word else np.ones(tokenizer.vocab_size, bool)
    assert not np.all(tokenizer.word_starts[bert.tokenizer(SENTENCES)["input_ids"]])

    def log_probs(ids):
        batch = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), bool)}
        return jax.nn.log_softmax(jnp.asarray(bert.logits(batch)[0], jnp.float32))

    for n, sentence in enumerate(SENTENCES):
        ids = bert.tokenizer([sentence])["input_ids"][0].tolist()
        for scores, start in ((whole, 0), (rest, 1 + starts[n])):
            expected = by_hand(
                ids, tokenizer.special_ids, begins, tokenizer.mask_id, log_probs, start
            )
            assert scores[n] == pytest.approx(expected, abs=1e-3)


def test_a_punctuation_mark_is_not_masked_with_the_word_before_it():
    """Words of byte-level BPE are those of `word_ids`, as of Kauf and Ivanova (2023)."""
    words = ["Un", " undoing", ",", " it", "'s", " (", "so", ").", " ", " ü"]
    tokenizer = tokenizers.train(["un", "it"] * 9, kind="bpe", vocab_size=280)
    scorer = sentence_scores.MaskedScorer(None, None, tokenizer, 32, False, within_word=True)
    (first, row) = tokenizer.encode_batch(["so", "".join(words)])
    sizes = [len(ids) for ids in tokenizer.encode_batch(words)]
    assert sum(sizes) == len(row) > len(words)
    expected = [len(first)] * len(first) + np.repeat(np.cumsum(sizes), sizes).tolist()
    positions = np.array([*range(1, len(first) + 1), *range(1, len(row) + 1)])
    assert scorer._last_masked([first, row], positions).tolist() == expected


def test_the_acceptable_sentence_must_be_more_likely():
    """Sentences of several pairs are scored once; paradigms count equally; a tie is an error."""
    pairs = [MinimalPair(*texts, "x") for texts in (("aa", "a"), ("a", "aa"), ("b", "a"))]
    pairs.append(MinimalPair("aa", "a", "y"))
    scored, shares = [], []

    class Lengths:
        max_tokens = 9
        tokenizer = types.SimpleNamespace(encode_batch=lambda texts: [[*text] for text in texts])

        def score(self, rows, starts, batch_size, report, log):
            scored.extend("".join(row) for row in rows)
            report(len(rows))
            return [float(len(row)) for row in rows]

    scores = minimal_pairs.score(
        Lengths(), pairs, batch_size=4, progress=lambda share, text: shares.append(share)
    )
    assert (scored, shares) == (["aa", "a", "b"], [1.0])
    assert scores == [(2, 1), (1, 2), (1, 1), (2, 1)]
    found = minimal_pairs.accuracies(pairs, scores)
    assert found == {"x": pytest.approx(1 / 3), "y": 1.0, "accuracy": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: expected JSON lines of sentence_good"),
        ('{"sentence_good": "a", "UID": "x"}', r":1: expected \{\"sentence_good\""),
        ('{"sentence_good": "a", "sentence_bad": " ", "UID": "x"}', ":1: expected"),
    ],
)
def test_malformed_pairs(tmp_path, text, message):
    path = tmp_path / "pairs.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        minimal_pairs.read(str(path))


def test_sentences_that_cannot_be_scored():
    scorer = sentence_scores.load(run_cache.find_run(str(RUN)), "float32", within_word=False)
    for sentence, message in (
        ("a " * 99, "a sentence is too long: got 99 tokens"),
        ("", "without"),
    ):
        with pytest.raises(UserError, match=message):
            sentence_scores.encode(scorer, [sentence])


def test_an_interrupted_evaluation_resumes(tmp_path, monkeypatch):
    """Finished groups are not scored again, and the output is the one without interruption."""
    monkeypatch.setattr(sentence_scores, "_CHUNK", 2)
    rows = [{"sentence_good": s, "sentence_bad": f"{s} dog", "UID": "x"} for s in SENTENCES]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shares = []

    def blimp(output, stop=1.5, **options):
        def progress(share, text):
            shares.append(share)
            if share > stop:
                raise KeyboardInterrupt

        arguments = ("blimp", str(RUN), str(tmp_path / "pairs.jsonl"))
        options = {"precision": "float32", "batch_size": 8} | options
        return bertjax.evaluate(
            *arguments, output=str(tmp_path / output), progress=progress, **options
        )

    expected = blimp("whole.jsonl")
    with pytest.raises(KeyboardInterrupt):
        blimp("scores.jsonl", stop=0.3)
    unfinished = tmp_path / ".scores.jsonl.unfinished"
    with (unfinished / "scores.jsonl").open("a") as file:
        file.write("[[7, 8], [-1.2")  # the process was killed while it wrote a line
    with pytest.raises(UserError, match="has finished parts with batch_size=8: got 4; give"):
        blimp("scores.jsonl", batch_size=4)
    shares.clear()
    assert blimp("scores.jsonl") == expected
    assert shares == pytest.approx([0.4, 0.5, 0.7, 0.8, 0.9, 1])
    written = [(tmp_path / name).read_bytes() for name in ("scores.jsonl", "whole.jsonl")]
    assert written[0] == written[1]
    assert not unfinished.exists()


@pytest.mark.slow
def test_scores_equal_those_of_pytorch(tmp_path):
    """A random BERT, loaded by transformers, one masked token after the other."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *(f"##{x}" for x in "abcd")]
    (tmp_path / "vocab.txt").write_text("\n".join([*words, ""]))
    tokenizer = transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"))
    tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=32,
        initializer_range=0.4,
    )
    model = transformers.BertForMaskedLM(config).eval()
    model.save_pretrained(tmp_path)
    sentences = ["a bcd e f", "abcd", "h g f e d c b a", "ab ca dd"]
    rows = [{"sentence_good": s, "sentence_bad": "a b", "UID": "x"} for s in sentences]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def log_probs(ids):
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([ids])).logits[0], -1).numpy()

    for within_word in (False, True):
        found = bertjax.evaluate(
            *("blimp", str(tmp_path), str(tmp_path / "pairs.jsonl")),
            within_word=within_word,
            precision="float32",
            output=str(tmp_path / "scores.jsonl"),
        )
        assert found["pairs"] == 4
        begins = np.array([not (within_word and word.startswith("##")) for word in words])
        for line, sentence in zip(
            (tmp_path / "scores.jsonl").read_text().splitlines(), sentences, strict=True
        ):
            expected = by_hand(tokenizer(sentence)["input_ids"], (2, 3), begins, 4, log_probs)
            assert json.loads(line)["log_probabilities"][0] == pytest.approx(expected, abs=1e-4)

        questions = [{"question": "a bcd", "choices": ["e f", "abcd h"], "answer": 1}]
        (tmp_path / "questions.jsonl").write_text(json.dumps(questions[0]))
        found = bertjax.evaluate(
            *("choices", str(tmp_path), str(tmp_path / "questions.jsonl")),
            within_word=within_word,
            precision="float32",
            output=str(tmp_path / "scores.jsonl"),
        )
        start = len(tokenizer("a bcd")["input_ids"]) - 1  # without [SEP]
        expected = [
            by_hand(tokenizer(f"a bcd {text}")["input_ids"], (2, 3), begins, 4, log_probs, start)
            for text in questions[0]["choices"]
        ]
        written = json.loads((tmp_path / "scores.jsonl").read_text())["log_probabilities"]
        np.testing.assert_allclose(written, expected, atol=1e-4)
        assert found["accuracy"] == (np.argmax(expected) == 1)
