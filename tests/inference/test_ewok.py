"""EWoK: files in the released layout, accuracies, and parity with a loop in PyTorch."""

import contextlib
import csv
import json
import types

import numpy as np
import pytest

import bertjax
from bertjax import cli
from bertjax.errors import UserError
from bertjax.inference import ewok, likelihood_evaluations
from bertjax.inference.ewok import Item

ROWS = [
    ("social", "ab cd", "ab, ef", "gh a", "b"),
    ("social", "c", "dd e", "f gh", "a b c"),
    ("spatial", "h g", "f e d", "dc", "ba f"),
]
CANARY = "# EWoK canary UUID 8540a8fc"


def write_csv(path, rows=ROWS, columns=ewok.COLUMNS, first=(CANARY,)):
    with path.open("w", newline="") as file:
        file.writelines(f"{line}\n" for line in first)
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return str(path)


def test_files_in_the_released_layout(tmp_path):
    paths = [write_csv(tmp_path / "a.csv", ROWS[:2]), write_csv(tmp_path / "b.csv", ROWS[2:])]
    items = ewok.read(paths)
    assert items == [Item(row[0], row[1:3], row[3:]) for row in ROWS]
    assert [item.where for item in items] == [f"{paths[0]}:3", f"{paths[0]}:4", f"{paths[1]}:3"]
    lines = [json.dumps(dict(zip(ewok.COLUMNS, row, strict=True)) | {"ID": 1}) for row in ROWS]
    (tmp_path / "c.jsonl").write_text("\n".join([*lines, ""]))
    assert ewok.read([str(tmp_path / "c.jsonl")]) == items


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": ("domain", *ewok.COLUMNS[1:])}, "has no column 'Domain': got domain, Con"),
        ({"rows": [ROWS[0], ("x", "a", " ", "b", "c")]}, r"\.csv:4: Context2: got ' ', expected"),
        ({"rows": []}, "has no rows"),
    ],
)
def test_malformed_files(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        ewok.read([write_csv(tmp_path / "items.csv", **changes)])


def test_each_comparison_counts_half_and_a_tie_half_of_it():
    items = [Item(domain, ("", ""), ("", "")) for domain in "xxxy"]
    scores = [
        ([-1.0, -3.0], [-2.0, -2.0]),  # both targets are right
        ([-1.0, -2.0], [-2.0, -3.0]),  # the first one
        ([-1.0, -2.0], [-1.0, -1.5]),  # a tie, and the second one
        ([-5.0, -1.0], [-4.0, -2.0]),  # none
    ]
    found = ewok.accuracies(items, scores)
    assert found == {
        "x": pytest.approx(4.5 / 6),
        "y": 0.0,
        "accuracy": pytest.approx(4.5 / 8),
        "mean_of_domains": pytest.approx(4.5 / 12),
    }


def test_targets_are_scored_after_their_contexts(tmp_path, monkeypatch, capsys):
    class Letters:
        max_tokens = 12
        tokenizer = types.SimpleNamespace(encode_batch=lambda texts: [[*text] for text in texts])

        def score(self, rows, starts, batch_size, report, log):
            return [float(start - len(row)) for row, start in zip(rows, starts, strict=True)]

    @contextlib.contextmanager
    def open_letters(*_, **options):
        yield Letters(), None

    monkeypatch.setattr(likelihood_evaluations, "_open", open_letters)
    words = ["evaluate", "ewok", "--model", "run", "--json", "--input"]
    items = write_csv(tmp_path / "items.csv")
    assert cli.main([*words, items, "--output", str(tmp_path / "scores.jsonl")]) == 0
    # All are ties.
    accuracies = {"social": 0.5, "spatial": 0.5, "accuracy": 0.5, "mean_of_domains": 0.5}
    assert json.loads(capsys.readouterr().out) == accuracies | {"items": 3}
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert [json.loads(line)["log_probabilities"] for line in lines] == [
        [[-len(f" {text}") for text in row[3:]]] * 2 for row in ROWS
    ]
    long = write_csv(tmp_path / "long.csv", [("x", "a", "b" * 9, "c", "de f")])
    assert cli.main([*words, long]) == 2
    assert f"{long}:3 is too long: got 14 tokens, expected at most 12" in capsys.readouterr().err


def save_gpt2(folder):
    """A GPT-2 whose tokens are bytes; returns (context, target) -> log probability."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers.pre_tokenizers import ByteLevel

    vocab = {token: n for n, token in enumerate([*sorted(ByteLevel.alphabet()), "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    torch.manual_seed(0)
    size = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40, "initializer_range": 0.4}
    config = transformers.GPT2Config(vocab_size=len(vocab), **size)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)

    def score(context, target):
        ids = [vocab["Ġ" if letter == " " else letter] for letter in f"{context} {target}"]
        ids = [vocab["<|endoftext|>"], *ids]
        total = 0.0
        for end in range(1 + len(context), len(ids)):
            with torch.no_grad():
                logits = model(torch.tensor([ids[:end]])).logits[0, -1]
            total += float(torch.log_softmax(logits, -1)[ids[end]])
        return total

    return score


def save_bert(folder):
    """A BERT whose words are letters; returns (context, target) -> pseudo-log-likelihood."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    letters = "abcdefgh,"
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    (folder / "vocab.txt").write_text("\n".join([*vocab, ""]))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    size |= {"intermediate_size": 40, "max_position_embeddings": 40, "initializer_range": 0.4}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(vocab), **size))
    model.eval().save_pretrained(folder)

    def tokens(text):
        words = text.replace(",", " ,").split()
        pieces = [[word[0], *(f"##{letter}" for letter in word[1:])] for word in words]
        return [vocab.index(piece) for word in pieces for piece in word]

    def score(context, target):
        start = 1 + len(tokens(context))
        ids = [2, *tokens(f"{context} {target}"), 3]
        total = 0.0
        for place in range(start, len(ids) - 1):
            masked = [*ids[:place], 4, *ids[place + 1 :]]
            with torch.no_grad():
                logits = model(torch.tensor([masked])).logits[0, place]
            total += float(torch.log_softmax(logits, -1)[ids[place]])
        return total

    return score


@pytest.mark.slow
@pytest.mark.parametrize("save", [save_gpt2, save_bert])
def test_scores_equal_those_of_pytorch(tmp_path, save):
    score = save(tmp_path)
    found = bertjax.evaluate(
        *("ewok", str(tmp_path), [write_csv(tmp_path / "items.csv")]),
        precision="float32",
        output=str(tmp_path / "scores.jsonl"),
    )
    expected, correct = [], {}
    for domain, *contexts, first, second in ROWS:
        (a, b), (c, d) = ([score(each, text) for text in (first, second)] for each in contexts)
        expected.append([[a, b], [c, d]])
        correct.setdefault(domain, []).extend([a > c, d > b])
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    written = [json.loads(line)["log_probabilities"] for line in lines]
    np.testing.assert_allclose(written, expected, atol=1e-4)
    assert {name: found[name] for name in correct} == {n: np.mean(c) for n, c in correct.items()}
    assert (found["accuracy"], found["items"]) == (np.mean(np.concatenate([*correct.values()])), 3)
