"""bertjax tokenizer encode: encoding and decoding lines of standard input."""

import io
import json
import subprocess
import sys

import pytest

from bertjax.commands import tokenizer as command
from bertjax.errors import UserError
from bertjax.tokenizers.tokenizer import load, train

LINES = ["The cat sat.", "", "  caf\u00e9 [MASK] </s> ", "\u4e2d\u6587"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-level tokenizer, which is lossless."""
    path = tmp_path_factory.mktemp("tokenize") / "vocab"
    train(["the cat sat on the mat"] * 3, kind="bpe", vocab_size=280).save(str(path))
    return path


@pytest.fixture
def tokenize(monkeypatch, folder):
    """Run the command in this process on bytes; return its lines and its error."""

    def run(content: bytes, *flags, verb="encode", tokenizer=folder, reader=io.BytesIO):
        output = io.BytesIO()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(reader(content)))
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output))
        error = None
        try:
            command.main([verb, "--tokenizer", str(tokenizer), *flags])
        except UserError as raised:
            error = str(raised)
        lines = output.getvalue().decode().split("\n")
        assert lines.pop() == ""
        return lines, error

    return run


def test_round_trip_through_a_pipe(run_bertjax, folder):
    content = "".join(line + "\n" for line in LINES)
    forth = run_bertjax("tokenizer", "encode", "--tokenizer", folder, input=content)
    assert forth.returncode == 0, forth.stderr
    answers = [json.loads(line) for line in forth.stdout.splitlines()]
    tokenizer = load(folder)
    assert [answer["ids"] for answer in answers] == tokenizer.encode_batch(LINES)
    assert answers[0]["pieces"] == tokenizer.ids_to_pieces(answers[0]["ids"])
    back = run_bertjax("tokenizer", "decode", "--tokenizer", folder, input=forth.stdout)
    assert back.stdout == content


def test_each_line_is_processed_before_the_next_arrives(folder, root, command_environment):
    process = subprocess.Popen(
        [sys.executable, "-m", "bertjax", "tokenizer", "encode", "--tokenizer", str(folder)],
        cwd=root,
        env=command_environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        for line in ("the cat", "sat"):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            assert "".join(json.loads(process.stdout.readline())["pieces"]) == line.replace(
                " ", "Ġ"
            )
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_the_last_line_may_lack_a_newline(tokenize, ending):
    lines, error = tokenize(b"the\r\ncat" + ending)
    assert error is None
    assert ["".join(json.loads(line)["pieces"]) for line in lines] == ["the", "cat"]


class ThreeByteReads(io.BytesIO):
    """A pipe that returns three bytes per read, like a slow writer."""

    def read1(self, size=-1):
        return super().read1(3)


def test_a_byte_order_mark_is_removed(tokenize):
    assert tokenize(b"\xef\xbb\xbfthe cat\nmat") == tokenize(b"the cat\nmat")


def test_lines_across_reads_are_joined(tokenize):
    content = "".join(line + "\n" for line in LINES).encode()
    assert tokenize(content, reader=ThreeByteReads) == tokenize(content)


@pytest.mark.parametrize("form", ['{{"ids": [{0}, {1}], "more": 1}}', "[{0}, {1}]", " {0} {1} "])
def test_ids_are_read_in_three_forms(tokenize, folder, form):
    ((first, second),) = load(folder).encode_batch(["the cat"])
    assert tokenize(form.format(first, second).encode(), verb="decode") == (["the cat"], None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("5 six", "got '5 six'"),
        ('{"pieces": ["a"]}', 'got \'{"pieces"'),
        ("[5, 6", "got '\\[5, 6'"),
        ("[5, true]", "got '\\[5, true\\]'"),
        ("[5, 6.5]", "got '\\[5, 6.5\\]'"),
        ('{"ids": 5}', 'expected {"ids": \\[7592, 2088\\]}'),
        ("5 99999", "id outside the vocabulary: got 99999, expected 0 to 2"),
        ("-1", "id outside the vocabulary: got -1"),
    ],
)
def test_an_invalid_line_of_ids_is_named_after_the_output_of_earlier_lines(tokenize, line, message):
    with pytest.raises(UserError, match=message):
        raise UserError(tokenize(line.encode(), verb="decode")[1])
    lines, error = tokenize(f"5\n\n{line}\n6\n".encode(), verb="decode")
    assert len(lines) == 2
    assert error.startswith("standard input, line 3: ")


def test_a_line_that_is_not_utf8_is_named_after_the_output_of_earlier_lines(tokenize):
    for reader in (io.BytesIO, ThreeByteReads):
        lines, error = tokenize(b"the\ncat\nb\xffd\nsat\n", reader=reader)
        assert len(lines) == 2
        assert error.startswith("standard input, line 3, byte 1: not UTF-8")


@pytest.mark.parametrize(("flag", "same"), [("--cased", False), ("--uncased", True)])
def test_case_options_apply_to_a_vocab_txt(tokenize, tmp_path, flag, same):
    path = tmp_path / "vocab.txt"
    path.write_text("[UNK]\nthe\nThe\n")
    lines, _ = tokenize(b"the\nThe\n", flag, tokenizer=path)
    assert (lines[0] == lines[1]) == same
