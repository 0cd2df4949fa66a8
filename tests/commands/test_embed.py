"""bertjax embed: features do not depend on the order, length and batch of the texts."""

import dataclasses
import gzip
import pathlib

import numpy as np
import pytest
import safetensors.numpy as safetensors

import bertjax
from bertjax.commands import embed
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.huggingface import importing
from bertjax.inference import features
from bertjax.inference.array_files import ArrayWriter
from bertjax.inference.feature_files import TextReader
from bertjax.runtime.progress import ProgressDisplay
from bertjax.tokenizers import tokenizer as tokenizers

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "configs" / "bert.py"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
SMALL = {
    "model.vocab_size": str(len(PIECES)),
    "model.hidden_size": "16",
    "model.num_hidden_layers": "2",
    "model.num_attention_heads": "2",
    "model.intermediate_size": "32",
    "model.max_position_embeddings": "24",
    "model.precision": "float32",
}
TEXTS = ["a b c d e f g h i j k l m n o p q r", "x y", "", "a", "q w e r t y"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A BERT with random weights whose words are letters."""
    folder = tmp_path_factory.mktemp("extract")
    (folder / "vocab.txt").write_text("\n".join([*PIECES, ""]))
    config = load_config(str(CONFIG), SMALL.items())
    random = np.random.default_rng(0)
    params = {
        name: random.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in importing.parameter_shapes(importing.pretrainer(config)).items()
    }
    tokenizer = tokenizers.load(folder / "vocab.txt")
    importing.write(importing.Import(config, tokenizer, params, ()), folder / "run")
    (folder / "texts.txt").write_text("\n".join([*TEXTS, ""]))
    return folder / "run"


def extracted(run, out, *options):
    source = run.parent / "texts.txt"
    arguments = ["--model", str(run), "--input", str(source), "--output", str(out), *options]
    embed.main(arguments)
    if out.suffix == ".npz":
        with np.load(out) as file:
            return dict(file)
    if out.suffix == ".npy":
        return np.load(out)
    if out.suffix == ".safetensors":
        return safetensors.load_file(out)
    from pyarrow import parquet

    return parquet.read_table(out).to_pydict()


@pytest.fixture(scope="module")
def tokens(run, tmp_path_factory):
    return extracted(run, tmp_path_factory.mktemp("npz") / "f.npz", "--layers", "all")


def test_a_row_for_each_token(tokens):
    assert tokens["layers"].tolist() == [0, 1, 2]
    assert tokens["features"].shape == (27, 3, 16)
    assert tokens["begins"].tolist() == [0, 18, 20, 20, 21, 27]
    words = [text[b:e] for text, rows in rows_of(tokens) for b, e in rows]
    assert words == " ".join(TEXTS).split()


def rows_of(tokens):
    begins = tokens["begins"]
    return [
        (text, tokens["spans"][begins[number] : begins[number + 1]])
        for number, text in enumerate(TEXTS)
    ]


def test_features_do_not_depend_on_batches_and_chunks(run, tokens):
    encoding = features.load(str(run), layers="-1,0")
    reader = TextReader(encoding.tokenizer, 24, texts_per_chunk=2)
    alone = dataclasses.replace(encoding, reader=reader)
    found = np.concatenate([rows for _, rows in features.extract(alone, TEXTS, "x", batch_size=1)])
    np.testing.assert_allclose(found, tokens["features"][:, [2, 0]], atol=1e-5)


def test_pooled_rows(run, tokens, tmp_path):
    mean = extracted(run, tmp_path / "mean.npz", "--pooling", "mean")["features"]
    bert = bertjax.load(run)
    batch = bert.tokenizer(TEXTS)
    sequences = np.asarray(bert(batch).sequence)
    for row, sequence, mask in zip(mean, sequences, batch["attention_mask"], strict=True):
        np.testing.assert_allclose(row[0], sequence[mask].mean(axis=0), atol=1e-5)
    begin, end = tokens["begins"][:2]
    np.testing.assert_allclose(sequences[0, 1:-1], tokens["features"][begin:end, -1], atol=1e-5)
    first = extracted(run, tmp_path / "cls.npz", "--pooling", "cls")["features"]
    assert first.shape == mean.shape
    assert np.abs(first - mean).max() > 0.01


def test_parquet_has_the_same_features(run, tokens, tmp_path):
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'bertjax[parquet]'")
    table = extracted(run, tmp_path / "f.parquet", "--layers", "-1,-2")
    assert list(table) == ["text", "token", "piece", "begin", "end", "layer_2", "layer_1"]
    assert table["piece"] == " ".join(TEXTS).split()
    assert table["text"] == [0] * 18 + [1] * 2 + [3] + [4] * 6
    np.testing.assert_array_equal(table["begin"], tokens["spans"][:, 0])
    np.testing.assert_allclose(table["layer_1"], tokens["features"][:, 1], atol=1e-5)


def test_every_format_has_the_same_features(run, tokens, tmp_path):
    found = extracted(run, tmp_path / "f.safetensors", "--layers", "all")
    assert found.keys() == tokens.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, tokens[name])
        assert array.dtype == tokens[name].dtype
    pooled = extracted(run, tmp_path / "f.npz", "--pooling", "mean")["features"]
    unit = extracted(run, tmp_path / "f.npy", "--pooling", "mean", "--normalize")
    norms = np.linalg.norm(pooled, axis=-1)
    np.testing.assert_allclose(unit * norms, pooled[:, 0], atol=1e-5)
    words = ("--pooling", "mean", "--normalize", "--dim", "3")
    short = extracted(run, tmp_path / "short.npy", *words)
    expected = pooled[:, 0, :3] / np.linalg.norm(pooled[:, 0, :3], axis=-1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {
        "f.safetensors",
        "f.npz",
        "f.npy",
        "short.npy",
    }


def test_rows_of_a_table_are_texts(run, tokens, tmp_path):
    table = tmp_path / "papers.csv"
    table.write_text("\n".join(["id,abstract", *(f'1,"{text}"' for text in TEXTS)]) + "\n")
    words = ["--model", str(run), "--input", str(table), "--output", str(tmp_path / "f.npz")]
    embed.main([*words, "--text_field", "abstract"])
    with np.load(tmp_path / "f.npz") as found:
        np.testing.assert_array_equal(found["begins"], tokens["begins"])
        np.testing.assert_allclose(found["features"], tokens["features"][:, -1:], atol=1e-6)
    with pytest.raises(UserError, match='the column "text" is missing; string columns: "id", "abs'):
        embed.main([*words[:-1], str(tmp_path / "g.npz")])


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--text_field", "a"], r"texts\.txt has no named fields"),
        (["--layers", "3"], r"got 3, expected 0 \(.*\) to 2, or -3 to -1"),
        (["--layers", "top"], "expected integers such as -1"),
        (["--max_length", "25"], "got 25, expected at most 24"),
        (["--dim", "17"], "dim: got 17, expected at most 16, the model's width"),
        (["--max_length", "12"], "line 1: text too long: got 18 tokens, expected at most 10"),
    ],
)
def test_impossible_options_are_one_line(run, tmp_path, options, printed):
    with pytest.raises(UserError, match=printed):
        extracted(run, tmp_path / "f.npz", *options)
    assert not list(tmp_path.iterdir())


def test_invalid_layers_are_refused():
    with pytest.raises(UserError, match="argument --layers: expected one argument"):
        embed.main(["--model", "run", "--input", "a.txt", "--layers", "--output", "f.npz"])


def test_longer_texts_are_truncated_on_request(run, tmp_path, capsys):
    found = extracted(run, tmp_path / "f.npz", "--max_length", "12", "--truncate")
    assert found["begins"].tolist() == [0, 10, 12, 12, 13, 19]
    assert capsys.readouterr().err == (
        "note: texts truncated to 10 tokens: 1\nnote: empty texts, which count too: 1\n"
    )


def test_the_precision_of_the_run_can_be_changed(run, tokens, tmp_path):
    found = extracted(run, tmp_path / "f.npz", "--layers", "all", "--precision", "bfloat16")
    difference = np.abs(found["features"] - tokens["features"]).max()
    assert 1e-4 < difference < 0.1


def test_files_are_not_overwritten(run, tmp_path):
    (tmp_path / "f.npz").write_text("mine")
    with pytest.raises(UserError, match="exists; pass a new file"):
        extracted(run, tmp_path / "f.npz")
    with pytest.raises(UserError, match=r"file name with \.npz, \.npy, \.safetensors or \.parquet"):
        extracted(run, tmp_path / "f.txt")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("f.npz", ["--layers", "all"]),
        ("f.npy", ["--pooling", "mean"]),
        ("f.parquet", ["--truncate", "--max_length", "12"]),
    ],
)
def test_an_interrupted_command_resumes(run, tmp_path, monkeypatch, capsys, name, options):
    """The process stops after the rows of the second of three chunks, before they are saved."""
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'bertjax[parquet]'")
    load, save, saved = features.load, ArrayWriter.save, []

    def load_small(*arguments, **settings):
        encoding = load(*arguments, **settings)
        reader = dataclasses.replace(encoding.reader, texts_per_chunk=2)
        return dataclasses.replace(encoding, reader=reader)

    def save_once(writer, progress):
        saved.append(progress["texts"])
        if len(saved) == 2:
            raise KeyboardInterrupt
        save(writer, progress)

    monkeypatch.setattr(features, "load", load_small)
    expected = extracted(run, tmp_path / f"whole{name}", *options)
    notes = capsys.readouterr().err
    monkeypatch.setattr(ArrayWriter, "save", save_once)
    with pytest.raises(KeyboardInterrupt):
        extracted(run, tmp_path / name, *options)
    with pytest.raises(UserError, match=r"has finished parts with batch_size=64: got 2; give"):
        extracted(run, tmp_path / name, *options, "--batch_size", "2")
    found = extracted(run, tmp_path / name, *options)
    assert saved == [2, 4, 4, 5]
    assert capsys.readouterr().err == f"note: resuming after 2 texts\n{notes}"
    if isinstance(expected, np.ndarray):
        expected, found = {"vectors": expected}, {"vectors": found}
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_array_equal(found[key], values)
    assert {path.name for path in tmp_path.iterdir()} == {name, f"whole{name}"}


def test_finished_parts_of_other_texts_are_refused(run, tmp_path, monkeypatch):
    save = ArrayWriter.save

    def save_and_stop(writer, progress):
        save(writer, progress | {"sha256": "of others"})
        raise KeyboardInterrupt

    monkeypatch.setattr(ArrayWriter, "save", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        extracted(run, tmp_path / "f.npy", "--pooling", "mean")
    with pytest.raises(UserError, match=r"texts\.txt: the first 5 texts differ from those whose"):
        extracted(run, tmp_path / "f.npy", "--pooling", "mean")


def test_progress_is_the_share_of_bytes(run, tmp_path, monkeypatch):
    updates = []
    monkeypatch.setattr(ProgressDisplay, "update", lambda display, *shown: updates.append(shown))
    source, packed = run.parent / "texts.txt", tmp_path / "texts.txt.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    for path in (source, packed):
        output = tmp_path / f"{path.name}.npz"
        embed.main(["--model", str(run), "--input", str(path), "--output", str(output)])
    assert updates == [(1.0, "5 texts"), (None, "5 texts")]
