"""Reading and writing safetensors files, reading state dicts of PyTorch, and errors."""

import json
import sys

import numpy as np
import pytest
import safetensors.numpy as library

from bertjax.errors import UserError
from bertjax.huggingface.model import read_arrays, write_arrays

ARRAYS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(5, np.float16)}


def test_round_trip(tmp_path):
    write_arrays(tmp_path, ARRAYS)
    found = read_arrays(tmp_path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    mode = (tmp_path / "model.safetensors").stat().st_mode
    assert mode & 0o777 == tmp_path.stat().st_mode & 0o666


def test_bfloat16(tmp_path):
    import ml_dtypes

    write_arrays(tmp_path, {"a": np.arange(3).astype(ml_dtypes.bfloat16)})
    np.testing.assert_array_equal(read_arrays(tmp_path)["a"].astype(np.float32), [0.0, 1.0, 2.0])


def sharded(folder):
    for number, (name, array) in enumerate(ARRAYS.items()):
        library.save_file({name: array}, folder / f"part{number}.safetensors")
    files = {name: f"part{number}.safetensors" for number, name in enumerate(ARRAYS)}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    return index


def test_several_files_with_an_index(tmp_path):
    sharded(tmp_path)
    assert read_arrays(tmp_path).keys() == ARRAYS.keys()


@pytest.mark.parametrize(
    ("damage", "printed"),
    [
        ("no file", r"part1.safetensors is missing"),
        ("no name", r"part0.safetensors lacks c, which .*index.json lists"),
        ("no map", r"has no weight_map"),
        ("cut", r"part1.safetensors is damaged \(.*\): copy it again"),
    ],
)
def test_a_broken_index(tmp_path, damage, printed):
    index = sharded(tmp_path)
    part = tmp_path / "part1.safetensors"
    if damage == "no file":
        part.unlink()
    elif damage == "no name":
        files = json.loads(index.read_text())["weight_map"] | {"c": "part0.safetensors"}
        index.write_text(json.dumps({"weight_map": files}))
    elif damage == "no map":
        index.write_text("{}")
    else:
        part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(UserError, match=printed) as caught:
        read_arrays(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_weights(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"has no model.safetensors: expected a folder"):
        read_arrays(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"got pytorch_model.bin, expected model.safetensors; load"):
        read_arrays(tmp_path)


class Executable:
    """Pickled as a call, which a reader of unknown files must not make."""

    def __reduce__(self):
        return print, ("the code of a pickle ran",)


@pytest.mark.slow
def test_state_dicts(tmp_path, capsys):
    """Arrays that share memory, or are not contiguous; of one file or several; never code."""
    torch = pytest.importorskip("torch", reason="state dicts need torch, of the group test-all")
    table = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    tensors = {"a": table, "b": table, "c": table.T, "d": torch.ones(2, dtype=torch.bfloat16)}
    file, index = tmp_path / "pytorch_model.bin", tmp_path / "pytorch_model.bin.index.json"
    torch.save(tensors, file)
    for _ in range(2):
        found = read_arrays(tmp_path)
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(found[name].astype(np.float32), tensor.float().numpy())
        assert found["d"].dtype.name == "bfloat16"
        file.unlink(missing_ok=True)
        torch.save({"d": tensors["d"]}, tmp_path / "last.bin")
        torch.save({name: tensors[name] for name in "abc"}, tmp_path / "first.bin")
        files = {name: "last.bin" if name == "d" else "first.bin" for name in tensors}
        index.write_text(json.dumps({"weight_map": files}))
    for other in ({"a": Executable()}, [table], b""):
        torch.save(other, file) if other else file.touch()
        with pytest.raises(UserError, match=r"pytorch_model.bin is damaged, or contains other"):
            read_arrays(tmp_path)
        file.write_bytes(b"")
    assert capsys.readouterr().out == ""
