"""bertjax bench, on shapes that take a moment."""

import json

import pytest

from bertjax.commands import bench
from bertjax.errors import UserError

SMALL = [
    "--config=configs/bert.py:tiny",
    "--config.model.vocab_size=61",
    "--config.model.hidden_size=16",
    "--config.model.intermediate_size=24",
    "--config.data.phases=((6, 16, 8), (4, 24, 16))",
    "--config.num_train_steps=10",
    "--config.optimizer.warmup_steps=1",
]


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch, root):
    monkeypatch.chdir(root)


@pytest.mark.slow
def test_every_phase_is_measured(capsys, tmp_path):
    words = [*SMALL, "--steps", "2", "--repeats", "3", "--warmup", "1", "--json"]
    bench.main([*words, "--profile", str(tmp_path)])
    out, progress = capsys.readouterr()
    printed = json.loads(out)
    assert printed["devices"] == 8
    assert [(phase["max_seq_length"], phase["batch_size"]) for phase in printed["phases"]] == [
        (16, 8),
        (24, 16),
    ]
    for phase in printed["phases"]:
        fastest, slowest = phase["seconds_per_step_min_max"]
        tokens = phase["max_seq_length"] * phase["batch_size"]
        assert 0 < fastest <= phase["seconds_per_step"] <= slowest
        assert phase["tokens_per_second"] == pytest.approx(tokens / phase["seconds_per_step"])
        assert phase["steps_per_timing"] == 2
        assert phase["compile_seconds"] > 0
        assert phase["peak_memory_bytes"] > 0
        assert 0 < phase["model_flops_utilisation"] < 1
        assert sum(phase["profile"].values()) == pytest.approx(1)
        assert all(phase["profile"][kind] > 0 for kind in ("attention", "matmul", "optimizer"))
    assert progress.count("s a step") == 6
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["16x24", "8x16"]


@pytest.mark.slow
def test_images_are_measured_as_well(capsys):
    small = ("hidden_size=16", "intermediate_size=24", "num_hidden_layers=1")
    words = ["--config=configs/vit.py:tiny", *(f"--config.model.{field}" for field in small)]
    words += ["--steps", "1", "--repeats", "1", "--warmup", "1"]
    bench.main([*words, "--json"])
    (phase,) = json.loads(capsys.readouterr().out)["phases"]
    assert phase["tokens_per_second"] == pytest.approx(phase["sequences_per_second"])


def test_text_output_has_a_line_per_phase():
    phase = {"max_seq_length": 128, "batch_size": 4, "seconds_per_step": 0.5, "compile_seconds": 3}
    phase |= {"tokens_per_second": 1024.0, "model_flops_utilisation": 0.25}
    phase |= {"peak_memory_bytes": 2_500_000_000, "peak_memory_of": "device"}
    failed = {"max_seq_length": 512, "batch_size": 4, "out_of_memory": "RESOURCE_EXHAUSTED"}
    run = {"config": "bert:tiny", "device": "cpu", "devices": 2, "precision": "float32"}
    phase["profile"] = {"matmul": 0.5, "attention": 0.25, "idle": 0.25}
    assert [*bench._lines(run | {"phases": [phase, failed]})] == [
        "bert:tiny on 2 cpu device(s), float32",
        "  4 x 128 tokens: 0.5000 s a step  1,024 tokens/s  MFU 25.0%  compiled in 3.0 s  "
        "peak memory of the device 2.50 GB",
        "    of its time: matmul 50.0%, attention 25.0%, idle 25.0%",
        "  4 x 512 tokens: out of memory",
    ]


@pytest.mark.slow
def test_a_phase_out_of_memory_is_reported_next_to_the_others(capsys):
    """Attention scores of 131,072 x 131,072 tokens: 128 GiB per head and example."""
    long = [
        "--config.model.max_position_embeddings=131072",
        "--config.data.phases=((6, 16, 8), (4, 131072, 8))",
    ]
    bench.main([*SMALL, *long, "--json", "--steps", "1", "--repeats", "1", "--warmup", "1"])
    out, progress = capsys.readouterr()
    measured, failed = json.loads(out)["phases"]
    assert measured["tokens_per_second"] > 0
    assert (failed["max_seq_length"], failed["batch_size"]) == (131072, 8)
    assert "raise --config.data.microbatches or set remat" in failed["out_of_memory"]
    assert failed["out_of_memory"] in progress


@pytest.mark.parametrize("option", ["--steps", "--repeats", "--warmup"])
def test_zero_is_refused(option):
    with pytest.raises(UserError, match=f"{option}: got 0, expected an integer >= 1"):
        bench.main([*SMALL, option, "0"])


def test_a_kernel_for_a_model_without_kernels_is_refused():
    words = ["--config=configs/xlnet.py:tiny", "--config.mesh.attention_kernel=splash"]
    with pytest.raises(UserError, match="got 'splash' with the model xlnet, whose attention has"):
        bench.main(words)


def test_a_folder_of_traces_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file") as caught:
        bench.main([*SMALL, "--profile", str(tmp_path / "file")])
    assert "\n" not in str(caught.value)
