"""experiments/layer_similarity.py: distances and cosines by hand from extracted features."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.huggingface import importing
from bertjax.inference import features as inference_features

LINES = ["a b c d e", "", "x y z"]


@pytest.fixture(scope="module")
def run(save_pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("analyze")
    importing.write(importing.read(save_pretrained(folder / "hf_model")), folder / "run")
    (folder / "texts.txt").write_text("\n".join([*LINES, ""]))
    return folder / "run"


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("experiments/layer_similarity.py")


@pytest.fixture
def measured(capsys, script, run):
    """The output of the script for the run."""

    def call(*words, texts="texts.txt"):
        source = run.parent / texts
        script.run(["--model", str(run), "--input", str(source), *map(str, words)])
        return capsys.readouterr().out

    return call


def test_distances_and_cosines_by_hand(run, measured):
    found = json.loads(measured("--json"))
    encoding = inference_features.load(str(run), layers="all")
    ((_, features),) = inference_features.extract(encoding, LINES, "texts")
    assert found["tokens"] == len(features) == 8
    for layer in range(2):
        before, after = features[:, layer], features[:, layer + 1]
        distances = [np.sqrt(((a - b) ** 2).sum()) for a, b in zip(after, before, strict=True)]
        angles = [(a @ b) / np.sqrt((a @ a) * (b @ b)) for a, b in zip(after, before, strict=True)]
        assert found["distance"][layer] == pytest.approx(np.mean(distances), rel=1e-5)
        assert found["cosine"][layer] == pytest.approx(np.mean(angles), rel=1e-5)


def test_the_table_has_a_line_for_each_layer(measured):
    header, names, *rows = measured().splitlines()
    assert header.endswith("run: 8 tokens")
    assert names.split() == ["layer", "L2", "distance", "cosine"]
    assert [row.split()[0] for row in rows] == ["1", "2"]


@pytest.mark.slow
def test_a_plot_is_written(measured, tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib: bertjax[plots]")
    out = measured("--plot", tmp_path / "layers.png")
    assert f"plot: {tmp_path / 'layers.png'}" in out
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


def test_the_cosine_of_an_identity_layer_is_one(script, monkeypatch):
    same = np.ones((3, 2, 4), np.float32)
    encoding = inference_features.FeatureExtractor(None, None, [0, 1], "none", None, None)
    monkeypatch.setattr(script, "extract", lambda *_, **__: [(None, same)])
    found = script.measure(encoding, [], "nothing")
    assert (found.distance.tolist(), found.cosine.tolist()) == ([0.0], [1.0])


@pytest.mark.parametrize(
    ("words", "texts", "message"),
    [
        (["--plot", "layers.txt"], "texts.txt", "layers.txt, expected a file name with .png"),
        ([], "nowhere.txt", "cannot read .*nowhere.txt: No such file or directory"),
        ([], "empty.txt", "has no text"),
    ],
)
def test_a_user_error_names_the_file(run, measured, words, texts, message):
    (run.parent / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match=message):
        measured(*words, texts=texts)
