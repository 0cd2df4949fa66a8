"""bertjax tokenizer: training, options and errors of the command."""

import pydoc_data.topics
import re
import sys

import pytest

from bertjax.commands import tokenizer as command
from bertjax.errors import UserError
from bertjax.tokenizers.tokenizer import load


@pytest.fixture
def text(tmp_path):
    """Documents separated by blank lines."""
    path = tmp_path / "topics.txt"
    topics = pydoc_data.topics.topics.values()
    documents = ["\n".join(line for line in topic.splitlines() if line.strip()) for topic in topics]
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


def test_a_tokenizer_is_trained_and_described(run_bertjax, text, tmp_path):
    out = tmp_path / "vocab"
    done = run_bertjax("tokenizer", "train", "--input", text, "--vocab_size", 600, "--output", out)
    assert done.returncode == 0, done.stderr
    tokenizer = load(out)
    assert tokenizer.vocab_size == 600
    assert "tokenizer    wordpiece, 600 tokens\n" in done.stdout
    assert f"fingerprint  {tokenizer.fingerprint}\n" in done.stdout
    assert f"written to   {out}: bertjax_tokenizer.json, tokenizer.json, " in done.stdout
    assert "note" not in done.stderr
    assert "training on" in done.stderr
    assert tokenizer.encode_batch(["THE"]) == tokenizer.encode_batch(["the"])


def test_help_has_examples_and_imports_nothing_heavy(run_bertjax):
    done = run_bertjax("tokenizer", "train", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    for word in ("examples:", "sentencepiece_bpe", "--character_coverage"):
        assert word in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"jax", "numpy", "tokenizers", "sentencepiece"}


def train(*argv) -> None:
    command.main(["train", *(str(word) for word in argv)])


def test_a_tokenizer_is_extended_and_described(text, tmp_path, capsys):
    train("--input", text, "--vocab_size", 600, "--max_documents", 5, "--output", tmp_path / "old")
    words = ["extend", "--tokenizer", tmp_path / "old", "--input", text, "--num_pieces", 50]
    capsys.readouterr()
    command.main([*map(str, words), "--output", str(tmp_path / "new")])
    printed = capsys.readouterr().out
    assert load(tmp_path / "new").vocab_size == 650
    assert "tokenizer    wordpiece, 650 tokens, 50 new ones: " in printed
    assert f"fingerprint  {load(tmp_path / 'new').fingerprint}\n" in printed
    after, before = re.search(r"(\S+) pieces per word instead of (\S+)", printed).groups()
    assert 1 < float(after) < float(before)


def test_options_reach_the_trainer(text, tmp_path):
    train(
        *("--input", text, "--kind", "bpe", "--vocab_size", 400, "--uncased", "--strip_accents"),
        *("--normalization", "nfkc", "--output", tmp_path / "vocab"),
    )
    tokenizer = load(tmp_path / "vocab")
    assert tokenizer.kind == "bpe"
    same = tokenizer.encode_batch(["\ufb01ne \u00c5", "fine a"])
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ([], [True, True]),
        (["--cased"], [False, False]),
        (["--keep_accents"], [True, False]),
        (["--cased", "--strip_accents"], [False, True]),
    ],
)
def test_case_and_accents(tmp_path, flags, same):
    path = tmp_path / "text.txt"
    path.write_text("the The caf\u00e9 cafe caf\u00e9 cafe\n", encoding="utf-8")
    options = ["--character_coverage", 1, "--vocab_size", 60]
    train("--input", path, *options, *flags, "--output", tmp_path / "vocab")
    the, capital, accented, plain = load(tmp_path / "vocab").encode_batch(
        ["the", "The", "caf\u00e9", "cafe"]
    )
    assert [the == capital, accented == plain] == same


def test_a_smaller_vocabulary_than_requested_is_reported(tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("a few words\n")
    train("--input", path, "--vocab_size", 5000, "--output", tmp_path / "vocab")
    size = load(tmp_path / "vocab").vocab_size
    assert f"--vocab_size: got 5,000, but this text has only {size}" in (capsys.readouterr().err)


def count_documents(tmp_path, capsys, *flags) -> int:
    train(
        "--input", tmp_path / "topics.txt", "--vocab_size", 300, *flags, "--output", tmp_path / "v"
    )
    words = capsys.readouterr().out.split()
    return int(words[words.index("documents,") - 1].replace(",", ""))


def test_only_the_first_documents(text, tmp_path, capsys):
    assert count_documents(tmp_path, capsys, "--max_documents", 7) == 7


def test_a_sample_has_about_its_share_and_is_reproducible(text, tmp_path, capsys):
    sampled = count_documents(tmp_path, capsys, "--sample", 0.5)
    whole = len(pydoc_data.topics.topics)
    assert 0.3 * whole < sampled < 0.7 * whole
    # Another sample would give another vocabulary, and the folder would be refused.
    assert count_documents(tmp_path, capsys, "--sample", 0.5) == sampled


def test_an_existing_tokenizer_is_kept(text, tmp_path):
    arguments = ["--input", text, "--output", tmp_path / "vocab", "--vocab_size"]
    train(*arguments, 300)
    kept = load(tmp_path / "vocab").fingerprint
    train(*arguments, 300)
    with pytest.raises(UserError, match="contains another tokenizer"):
        train(*arguments, 310)
    assert load(tmp_path / "vocab").fingerprint == kept


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max_documents", "0"], "--max_documents: got 0, expected an integer >= 1"),
        (["--sample", "0"], r"--sample: got 0\.0, expected a share in \(0, 1\]"),
        (["--format", "pdf"], "unknown format 'pdf'"),
        (["--output", "OCCUPIED"], "is not a tokenizer folder"),
    ],
)
def test_user_errors_leave_no_files(text, tmp_path, flags, message):
    flags = [tmp_path if flag == "OCCUPIED" else flag for flag in flags]
    with pytest.raises(UserError, match=message):
        train("--input", text, "--output", tmp_path / "vocab", *flags)
    assert list(tmp_path.iterdir()) == [text]


def test_damaged_input_is_named_and_leaves_no_files(run_bertjax, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"good line\n\nbad \xff line\n")
    out = tmp_path / "vocab"
    done = run_bertjax("tokenizer", "train", "--input", path, "--kind", "unigram", "--output", out)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(path) in done.stderr
    assert "UTF-8" in done.stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_displayed_on_a_terminal_only(text, tmp_path, monkeypatch, capsys, terminal):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    train("--input", text, "--vocab_size", 300, "--output", tmp_path / "vocab")
    written = capsys.readouterr()
    assert ("\x1b[" in written.err) == terminal
    assert "\x1b[" not in written.out
