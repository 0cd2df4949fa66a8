"""Preparation of a corpus: splits, workers, interruptions, resuming, and refused input."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

from bertjax.corpus import reading
from bertjax.corpus.prepare import prepare
from bertjax.corpus.reader import open_corpus, sentence_ids, verify
from bertjax.errors import UserError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *(f"w{n}" for n in range(200))]
SHARD = 0.05
"""MiB, so that a few files make several shards."""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary")
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return path


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    """Five files of about 100 kB: 300 documents, a few of them empty."""
    draw = random.Random(7)
    folder = tmp_path_factory.mktemp("text")
    for number in range(5):
        rows = []
        for _ in range(60):
            sentences = [
                " ".join(draw.choices(WORDS[6:], k=draw.randint(1, 30))) + "."
                for _ in range(draw.randint(0, 45))
            ]
            rows.append(
                json.dumps({"text": " ".join(sentence.capitalize() for sentence in sentences)})
            )
        (folder / f"{number}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_CHARACTERS", 1 << 13)


@pytest.fixture
def make(text_folder, vocabulary, tmp_path):
    def call(out="corpus", **options):
        options = {"validation_fraction": 0.1, "shard_size": SHARD, "workers": 1} | options
        inputs = options.pop("inputs", [str(text_folder / "*.jsonl")])
        return prepare(inputs, vocabulary, tmp_path / out, **options)

    return call


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def texts_of(corpus):
    """All documents of an open corpus, as lists of sentences of words."""
    documents = {}
    found = corpus.read(np.arange(corpus.num_records))
    for record, sentences, document in zip(found, corpus.sentences, corpus.document, strict=True):
        for ids in sentence_ids(record, int(sentences), corpus.dtype):
            words = "".join(f" {WORDS[token]}" for token in ids).replace(" .", ".").strip()
            documents.setdefault(int(document), []).append(words)
    return list(documents.values())


def test_a_corpus_contains_its_text_in_order(make, text_folder, tmp_path):
    manifest = make(validation_fraction=0.0)
    expected = []
    for path in sorted(text_folder.iterdir()):
        expected += [json.loads(line)["text"].lower() for line in path.read_text().splitlines()]
    kept = [text for text in expected if text]
    verify(tmp_path / "corpus")
    corpus = open_corpus(tmp_path / "corpus")
    found = texts_of(corpus)
    assert [" ".join(sentences) for sentences in found] == kept
    assert all(sentence.endswith(".") for sentences in found for sentence in sentences)
    split = manifest["splits"]["train"]
    assert len(split["shards"]) > 3
    assert split["documents"] == len(kept) == corpus.num_documents
    assert split["characters"] == sum(map(len, kept))
    assert split["sentences"] == sum(map(len, found))
    assert split["tokens"] == corpus.num_tokens == corpus.token_counts.sum()
    assert manifest["dropped"] == {"empty": len(expected) - len(kept)}
    assert not (tmp_path / "corpus/unfinished").exists()


def test_every_document_is_in_one_split(make, tmp_path):
    make()
    make("whole", validation_fraction=0.0)
    train, validation = (
        [" ".join(text) for text in texts_of(open_corpus(tmp_path / "corpus", split))]
        for split in ("train", "validation")
    )
    whole = [" ".join(text) for text in texts_of(open_corpus(tmp_path / "whole"))]
    assert sorted(train + validation) == sorted(whole)
    assert 10 < len(validation) < 60


def test_validation_inputs_are_the_validation_split(make, text_folder, tmp_path):
    files = sorted(map(str, text_folder.iterdir()))
    make(inputs=files[:3], validation_inputs=files[3:], validation_fraction=0.0)
    make("held", inputs=files[3:], validation_fraction=0.0)
    found = texts_of(open_corpus(tmp_path / "corpus", "validation"))
    assert found == texts_of(open_corpus(tmp_path / "held"))


def test_the_number_of_workers_does_not_change_the_bytes(make, tmp_path):
    make("one", workers=1)
    make("three", workers=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


class Stop(BaseException):
    """Raised by a callback to interrupt `prepare`."""


def test_a_resumed_call_gives_the_same_bytes(make, tmp_path):
    make("whole")
    earlier, blocks_seen = [], [0]

    def stop_ever_later(progress):
        earlier.append(progress.earlier_documents)
        blocks_seen[-1] += 1
        if blocks_seen[-1] == 9 + 5 * len(blocks_seen):
            raise Stop

    while not (tmp_path / "corpus/manifest.json").is_file():
        with contextlib.suppress(Stop):
            make(progress=stop_ever_later, workers=2)
        blocks_seen.append(0)
    assert len(set(earlier)) >= 3
    assert contents(tmp_path / "corpus") == contents(tmp_path / "whole")


def test_a_call_that_finished_no_shard_leaves_no_files(make, tmp_path):
    def stop(progress):
        raise Stop

    with pytest.raises(Stop):
        make(progress=stop, shard_size=64)
    assert not (tmp_path / "corpus").exists()


def stopped_after_some_shards(make, **options):
    def stop(progress):
        if progress.documents > 150:
            raise Stop

    with pytest.raises(Stop):
        make(progress=stop, **options)


def test_resuming_with_other_options_or_another_tokenizer_is_refused(
    make, text_folder, tmp_path, vocabulary
):
    stopped_after_some_shards(make)
    with pytest.raises(UserError, match=r"validation_fraction: got 0\.2, expected 0\.1"):
        make(validation_fraction=0.2)
    with pytest.raises(UserError, match="inputs: got"):
        make(inputs=[str(text_folder / "[0-3].jsonl")])
    other = shutil.copytree(vocabulary, tmp_path / "other")
    (other / "vocab.txt").write_text("\n".join([*WORDS, "more"]) + "\n")
    with pytest.raises(UserError, match="tokenizer: got"):
        prepare(
            [str(text_folder / "*.jsonl")],
            other,
            tmp_path / "corpus",
            validation_fraction=0.1,
            shard_size=SHARD,
        )
    make()
    with pytest.raises(UserError, match=r"shard_size: got 1, expected 0\.05"):
        make(shard_size=1)


def test_a_complete_corpus_is_returned_immediately(make, tmp_path):
    manifest = make()
    before = contents(tmp_path / "corpus")
    assert make(progress=lambda _: pytest.fail("nothing is left to do")) == manifest
    assert contents(tmp_path / "corpus") == before


def test_input_that_changed_before_the_position_is_refused(make, text_folder, tmp_path):
    folder = shutil.copytree(text_folder, tmp_path / "text")
    inputs = [str(folder / "*.jsonl")]
    stopped_after_some_shards(make, inputs=inputs)
    (folder / "0.jsonl").write_text('{"text": "W1."}\n')
    with pytest.raises(UserError, match=r"0\.jsonl was changed"):
        make(inputs=inputs)


def test_a_damaged_file_can_be_replaced_before_resuming(make, text_folder, tmp_path):
    folder = shutil.copytree(text_folder, tmp_path / "text")
    inputs = [str(folder / "*.jsonl")]
    make("whole", inputs=inputs)
    good = (folder / "4.jsonl").read_bytes()
    (folder / "4.jsonl").write_bytes(good[: len(good) // 2] + b"\xff" + good[len(good) // 2 :])
    with pytest.raises(UserError, match=r"4\.jsonl is not UTF-8 at byte"):
        make(inputs=inputs)
    assert list((tmp_path / "corpus/unfinished").glob("train-*.array_record"))
    (folder / "4.jsonl").write_bytes(good)
    earlier = []
    make(inputs=inputs, progress=lambda progress: earlier.append(progress.earlier_documents))
    assert earlier[0] > 50
    assert contents(tmp_path / "corpus") == contents(tmp_path / "whole")


def test_a_missing_shard_of_an_incomplete_corpus_is_detected(make, tmp_path):
    stopped_after_some_shards(make)
    next((tmp_path / "corpus/unfinished").glob("train-*.array_record")).unlink()
    with pytest.raises(UserError, match="is missing or damaged"):
        make()


def test_a_shortened_shard_of_an_incomplete_corpus_is_detected(make, tmp_path):
    stopped_after_some_shards(make)
    shard = next((tmp_path / "corpus/unfinished").glob("train-*.array_record"))
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(UserError, match="is missing or damaged"):
        make()


def test_two_processes_do_not_write_one_corpus(make):
    def again(progress):
        with pytest.raises(UserError, match="is locked by another `bertjax prepare`"):
            make()
        raise Stop

    with pytest.raises(Stop):
        make(progress=again)


def test_replaced_bytes_are_counted_through_interruptions(make, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\n\n".join(b"W1 w2 \xff w3. W4." for _ in range(9000)))
    inputs = [str(folder / "*.txt")]
    with pytest.raises(UserError, match=r"a\.txt is not UTF-8 at byte 6 "):
        make(inputs=inputs)
    stopped_after_some_shards(make, inputs=inputs, errors="replace")
    assert make(inputs=inputs, errors="replace")["replaced"] == 9000


def test_the_text_field_is_part_of_the_recipe(make, text_folder, tmp_path):
    whole = make("corpus")
    folder = tmp_path / "other"
    folder.mkdir()
    for path in text_folder.iterdir():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        renamed = [{"text": "Nothing.", "body": row["text"]} for row in rows]
        (folder / path.name).write_text("\n".join(map(json.dumps, renamed)) + "\n")
    inputs = [str(folder / "*.jsonl")]
    manifest = make("bodies", inputs=inputs, text_field="body")
    assert manifest["fingerprint"] == whole["fingerprint"]
    assert make("bodies", inputs=inputs, text_field="body") == manifest
    with pytest.raises(UserError, match='text_field: got null, expected "body"'):
        make("bodies", inputs=inputs)
    assert make("corpus", text_field="text") == whole


def test_a_corpus_of_an_older_version_without_the_field_is_read(make, tmp_path):
    whole = make()
    path = tmp_path / "corpus/manifest.json"
    older = json.loads(path.read_text())
    del older["source"]["text_field"]
    path.write_text(json.dumps(older))
    assert make()["fingerprint"] == whole["fingerprint"]


def test_a_file_that_is_not_text_is_refused_before_writing(make, text_folder, tmp_path):
    (tmp_path / "z.html").write_text("<html>")
    (tmp_path / "z.csv").write_text("id,body\n1,a\n")
    for name, problem in (
        ("z.html", "is an HTML page, expected text"),
        ("z.csv", 'the column "text" is missing; string columns: "id", "body"'),
    ):
        with pytest.raises(UserError, match=problem):
            make(inputs=[str(text_folder / "*.jsonl"), str(tmp_path / name)])
        assert not (tmp_path / "corpus").exists()


def test_a_table_is_resumed_and_gives_the_shards_of_other_formats(make, text_folder, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path / "tables"
    folder.mkdir()
    for path in text_folder.iterdir():
        rows = pa.Table.from_pylist([json.loads(line) for line in path.read_text().splitlines()])
        parquet.write_table(rows, folder / f"{path.stem}.parquet", row_group_size=7)
    inputs = [str(folder / "*.parquet")]
    stopped_after_some_shards(make, inputs=inputs)
    assert make(inputs=inputs, workers=2)["fingerprint"] == make("rows")["fingerprint"]


def test_an_input_that_is_also_a_validation_input_is_refused(make, text_folder, tmp_path):
    files = sorted(map(str, text_folder.iterdir()))
    with pytest.raises(UserError, match=r"2\.jsonl is both an input and a validation input"):
        make(inputs=files[:3], validation_inputs=files[2:], validation_fraction=0.0)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation_fraction": 1.0}, r"validation_fraction: got 1\.0"),
        ({"validation_inputs": ["x"]}, "expected one of them"),
        ({"shard_size": 0}, "shard_size: got 0"),
        ({"workers": 0}, "workers: got 0"),
        ({"errors": "ignore"}, "errors: got 'ignore'"),
        ({"format": "txt"}, "unknown format 'txt'"),
        ({"inputs": ["nowhere/*"]}, "no file matches"),
    ],
)
def test_invalid_arguments_are_refused(make, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        make(**options)
    assert not (tmp_path / "corpus").exists()


def test_input_without_text_is_refused(make, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(UserError, match="no text in"):
        make(inputs=[str(tmp_path / "empty.txt")])
    assert not (tmp_path / "corpus").exists()


def test_a_folder_with_other_files_is_refused_and_unchanged(make, tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="expected an empty one or a corpus"):
        make()
    assert contents(tmp_path / "corpus").keys() == {"thesis.txt"}


LIMITED = """
import resource, signal, sys
from bertjax import cli
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))
sys.exit(cli.main(sys.argv[1:]))
"""


def command(text_folder, vocabulary, out):
    return (
        f"prepare --input {text_folder}/*.jsonl --tokenizer {vocabulary} --output {out} "
        "--workers 2 "
        "--shard_size 0.02 --validation_fraction 0.1"
    ).split(" ")


def environment(root):
    """Of the commands; without that of coverage, whose own file would exceed the limit."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return kept | {"PYTHONPATH": str(root)}


def test_a_full_disk_is_one_line_and_keeps_finished_shards(root, text_folder, vocabulary, tmp_path):
    """A limit on the size of files fails as a full disk does: in the middle of a write."""
    arguments = command(text_folder, vocabulary, tmp_path / "corpus")
    run = [sys.executable, "-c"]
    limited = subprocess.run(
        [*run, LIMITED, *arguments], capture_output=True, text=True, env=environment(root)
    )
    assert limited.returncode == 2, limited.stderr
    assert "the disk is full" in limited.stderr
    assert len(limited.stderr.splitlines()) == 1
    free = LIMITED.replace("resource.setrlimit", "(lambda *_: None)")
    for out in ("corpus", "whole"):
        arguments = command(text_folder, vocabulary, tmp_path / out)
        subprocess.run([*run, free, *arguments], check=True, env=environment(root))
    assert contents(tmp_path / "corpus") == contents(tmp_path / "whole")
