"""bertjax analyze: distances and cosines between layers, by hand from extracted features."""

import json
import pathlib

import numpy as np
import pytest

from bertjax import cli
from bertjax.huggingface import importing
from bertjax.inference import features as inference_features
from bertjax.inference import layer_analysis

LINES = ["a b c d e", "", "x y z"]


@pytest.fixture(scope="module")
def run(save_pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("analyze")
    importing.write(importing.read(save_pretrained(folder / "theirs")), folder / "run")
    (folder / "texts.txt").write_text("\n".join([*LINES, ""]))
    return folder / "run"


def typed(capsys, run, *words, texts="texts.txt"):
    source = run.parent / texts
    status = cli.main(["analyze", "--init", str(run), "--input", str(source), *map(str, words)])
    return status, *capsys.readouterr()


def test_distances_and_cosines_by_hand(run, capsys):
    status, out, _ = typed(capsys, run, "--json")
    assert status == 0
    found = json.loads(out)
    encoding = inference_features.load(str(run), layers="all")
    ((_, features),) = inference_features.extract(encoding, LINES, "texts")
    assert found["tokens"] == len(features) == 8
    for layer in range(2):
        before, after = features[:, layer], features[:, layer + 1]
        distances = [np.sqrt(((a - b) ** 2).sum()) for a, b in zip(after, before, strict=True)]
        angles = [(a @ b) / np.sqrt((a @ a) * (b @ b)) for a, b in zip(after, before, strict=True)]
        assert found["distance"][layer] == pytest.approx(np.mean(distances), rel=1e-5)
        assert found["cosine"][layer] == pytest.approx(np.mean(angles), rel=1e-5)


def test_the_table_has_a_line_for_each_layer(run, capsys):
    _, out, _ = typed(capsys, run)
    header, names, *rows = out.splitlines()
    assert header.endswith("run: 8 tokens")
    assert names.split() == ["layer", "L2", "distance", "cosine"]
    assert [row.split()[0] for row in rows] == ["1", "2"]


@pytest.mark.slow
def test_a_plot_is_written(run, capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib: bertjax[report]")
    status, out, _ = typed(capsys, run, "--plot", tmp_path / "layers.png")
    assert status == 0
    assert f"plot: {tmp_path / 'layers.png'}" in out
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


def test_the_cosine_of_an_identity_layer_is_one():
    same = np.ones((3, 2, 4), np.float32)
    encoding = inference_features.FeatureExtractor(None, None, [0, 1], "none", None, None)
    found = with_features(encoding, same)
    assert (found.distance.tolist(), found.cosine.tolist()) == ([0.0], [1.0])


def with_features(encoding, features):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_analysis, "extract", lambda *_, **__: [(None, features)])
        return layer_analysis.measure(encoding, [], "nothing")


@pytest.mark.parametrize(
    ("words", "texts", "message"),
    [
        (["--plot", "layers.txt"], "texts.txt", "layers.txt, expected a file name with .png"),
        ([], "nowhere.txt", "nowhere.txt: --input expects a file with one text per line"),
        (["--batch_size", "0"], "texts.txt", "--batch_size: got 0, expected an integer >= 1"),
    ],
)
def test_a_user_error_is_one_line(run, capsys, words, texts, message):
    status, out, errors = typed(capsys, run, *words, texts=texts)
    assert (status, out) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


def test_a_file_without_text(run, capsys):
    pathlib.Path(run.parent / "empty.txt").write_text("\n")
    status, _, errors = typed(capsys, run, texts="empty.txt")
    assert status == 2
    assert "has no text" in errors
