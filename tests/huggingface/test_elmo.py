"""Import of released ELMo models: conversion, and errors before anything is written."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.huggingface import importing
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint import restore

h5py = pytest.importorskip("h5py", reason="weights of ELMo need h5py: pip install 'bertjax[elmo]'")

pytestmark = pytest.mark.slow

OPTIONS = {
    "lstm": {
        "cell_clip": 3,
        "use_skip_connections": True,
        "n_layers": 1,
        "proj_clip": 3,
        "projection_dim": 4,
        "dim": 6,
    },
    "char_cnn": {
        "embedding": {"dim": 3},
        "filters": [[1, 2], [2, 5]],
        "n_highway": 1,
        "n_characters": 262,
        "max_characters_per_token": 10,
        "activation": "relu",
    },
}
SHAPES = {
    "char_embed": (261, 3),
    "CNN/W_cnn_0": (1, 1, 3, 2),
    "CNN/b_cnn_0": (2,),
    "CNN/W_cnn_1": (1, 2, 3, 5),
    "CNN/b_cnn_1": (5,),
    "CNN_high_0/W_carry": (7, 7),
    "CNN_high_0/b_carry": (7,),
    "CNN_high_0/W_transform": (7, 7),
    "CNN_high_0/b_transform": (7,),
    "CNN_proj/W_proj": (7, 4),
    "CNN_proj/b_proj": (4,),
}
for side in (0, 1):
    cell = f"RNN_{side}/RNN/MultiRNNCell/Cell0/LSTMCell"
    SHAPES |= {f"{cell}/W_0": (8, 24), f"{cell}/B": (24,), f"{cell}/W_P_0": (6, 4)}


@pytest.fixture
def release(tmp_path):
    """Write a folder like a released ELMo."""

    def write(options=OPTIONS, **changed):
        folder = tmp_path / "hf_model"
        folder.mkdir()
        (folder / "small_options.json").write_text(json.dumps(options))
        random = np.random.default_rng(0)
        with h5py.File(folder / "small_weights.hdf5", "w") as file:
            for name, shape in (SHAPES | changed).items():
                file[name] = random.normal(size=shape).astype(np.float32)
        return folder

    return write


def test_a_released_elmo_becomes_a_run(release, run_bertjax, tmp_path):
    folder = release()
    output = run_bertjax("import", "--model", folder, "--workdir", tmp_path / "run")
    assert output.returncode == 0, output.stderr
    assert ": elmo with 1,450 parameters; heads: none" in output.stdout
    origin = checkpoint_origin.resolve(str(tmp_path / "run"))
    recurrent = restore.load_numpy(origin.checkpoint, "params/encoder/recurrent")
    with h5py.File(folder / "small_weights.hdf5") as file:
        whole = np.asarray(file["RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"])
    own = recurrent["backward_0"]
    both = np.concatenate([own["input"]["kernel"], own["recurrent"]]).reshape(8, 24)
    np.testing.assert_array_equal(both, whole)


def test_mismatched_options_are_listed_in_a_table(release):
    changed = {**OPTIONS, "lstm": {**OPTIONS["lstm"], "dim": 5}}
    with pytest.raises(UserError) as caught:
        importing.read(release(changed, extra=(2,)))
    first, *rows = str(caught.value).splitlines()
    assert "options.json does not fit the weights" in first
    assert "LSTMCell/W_0  got (8, 24), expected (8, 20)" in rows[0]
    assert rows[-1] == "  extra  got (2,), expected nothing"


@pytest.mark.parametrize(
    ("part", "field", "printed"),
    [
        ("lstm", {"n_layers": None}, "does not describe an ELMo: TypeError"),
        ("char_cnn", {"filters": None}, "does not describe an ELMo: TypeError"),
        ("char_cnn", {"activation": "gelu"}, "activation='gelu', expected one of relu, tanh"),
    ],
)
def test_options_that_cannot_be_read(release, part, field, printed):
    section = OPTIONS[part] | field
    with pytest.raises(UserError, match=printed):
        importing.read(release({**OPTIONS, part: section}))


def test_files_that_are_missing_or_damaged(release):
    folder = release()
    (folder / "small_weights.hdf5").write_bytes(b"no weights")
    with pytest.raises(UserError, match="not an HDF5 file, or damaged"):
        importing.read(folder)
    (folder / "small_weights.hdf5").unlink()
    with pytest.raises(UserError, match=r"got none as \*weights.hdf5, expected exactly one"):
        importing.read(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"task": "rte"}, "--task: got rte, expected none"), ({"labels": ("a",)}, "--labels: got a")],
)
def test_a_task_head_is_refused(release, options, message):
    with pytest.raises(UserError, match=message):
        importing.read(release(), **options)
