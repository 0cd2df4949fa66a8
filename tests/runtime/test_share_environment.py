"""Each of several processes gets its share of the GPUs, TPU chips and their memory."""

import pytest

from bertjax.runtime import children


def shares(num_shares, max_devices=None, **variables):
    made = [
        children.share_environment(variables, share, num_shares, max_devices)
        for share in range(num_shares)
    ]
    return [one["CUDA_VISIBLE_DEVICES"] for one in made], made[0]


@pytest.fixture
def no_tpu(monkeypatch):
    monkeypatch.setattr(children.host, "list_tpu_chips", list)


def test_gpus_are_divided_in_equal_numbers(no_tpu):
    eight = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    assert shares(2, **eight)[0] == ["0,1,2,3", "4,5,6,7"]
    assert shares(3, **eight)[0] == ["0,1", "2,3", "4,5"]
    assert shares(3, 1, **eight)[0] == ["0", "1", "2"]
    assert shares(1, **eight)[0] == ["0,1,2,3,4,5,6,7"]
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in shares(2, **eight)[1]


def test_processes_on_one_gpu_share_its_memory():
    gpus, first = shares(3, CUDA_VISIBLE_DEVICES="5,6")
    assert gpus == ["5", "6", "5"]
    assert first["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.45"
    kept = {"CUDA_VISIBLE_DEVICES": "5", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}
    assert shares(2, **kept)[1]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.2"


def test_each_process_gets_one_tpu_chip(monkeypatch):
    monkeypatch.setattr(children.host, "list_gpus", list)
    monkeypatch.setattr(children.host, "list_tpu_chips", lambda: ["0", "1", "2", "3"])
    assert children.share_environment({}, 2, 4)["TPU_VISIBLE_DEVICES"] == "2"
    assert children.share_environment({}, 0, 1) == {}
    assert children.share_environment({"JAX_PLATFORMS": "cpu"}, 2, 4) == {"JAX_PLATFORMS": "cpu"}
