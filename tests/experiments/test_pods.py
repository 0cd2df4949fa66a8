"""experiments/pods.py: the number of microbatches, stored plans, and the printed table."""

import json
import subprocess
import types

import pytest

from bertjax.errors import UserError

GB = 1e9


@pytest.fixture(scope="module")
def pods(load_script) -> types.ModuleType:
    return load_script("experiments/pods.py")


@pytest.fixture
def pod(pods, monkeypatch):
    """Fake topologies: the name "8 of 16" is 8 chips of 16 GB."""

    def topology(name):
        count, memory = map(int, name.split(" of "))
        chip = types.SimpleNamespace(memory_bytes=memory * GB)
        return types.SimpleNamespace(devices=range(count), chip=chip)

    monkeypatch.setattr(pods.chips, "get_topology", topology)


@pytest.mark.parametrize(
    ("config", "name", "parts"),
    [
        # 256 sequences of 512 tokens: 16,384 tokens per chip of 8; large needs two parts.
        ("configs/bert_base.py", "8 of 16", 1),
        ("configs/bert_large.py", "8 of 16", 2),
        ("configs/bert_large.py", "8 of 32", 1),
        ("configs/bert_large.py", "256 of 16", 1),
        # 8,192 sequences of 512 tokens; 8 of them fit on a chip.
        ("configs/roberta.py:large", "8 of 16", 128),
        ("configs/roberta.py:large", "256 of 16", 4),
    ],
)
def test_microbatches_fit_on_a_chip(config, name, parts, pods, pod, root, monkeypatch):
    monkeypatch.chdir(root)
    assert pods.microbatches(config, name) == parts


def test_overrides_change_the_microbatches(pods, pod, root, monkeypatch):
    monkeypatch.chdir(root)
    length = [("data.phases", "()"), ("data.max_seq_length", "128")]
    assert pods.microbatches("configs/bert_large.py", "8 of 16", length) == 1


def step(tokens: int, steps: int, seconds: float, parts: int) -> dict:
    return {
        "phase": {"steps": steps, "batch_size": 256, "max_seq_length": tokens},
        "seconds": {"step": seconds},
        "memory": {"all": tokens * 2e7, "capacity": 16 * GB},
        "settings": {"data": 8, "remat": "full", "microbatches": parts},
        "sequences_per_second": 256 / seconds,
        "model_flops_utilisation": 0.5,
    }


PLAN = {
    "that_fit": [step(128, 900, 0.03, 2), step(512, 100, 0.5, 4)],
    "run_seconds": 86_400.0,
    "chip_hours": 192.0,
}


def test_a_row_has_the_longest_phase_and_the_most_memory(pods):
    *_, whole, none = pods.table(
        [("configs/bert_large.py", "v5e-8", PLAN), ("configs/x.py", "v5e-8", {"that_fit": []})]
    ).splitlines()
    assert whole == (
        "| `bert_large.py` | v5e-8 | 2, 4, remat full | 10.2 of 16 GB | 500 ms for 256 x 512 | 512"
        " | 50% | 1 days | 192 |"
    )
    assert none == "| `x.py` | v5e-8 | does not fit | | | | | | |"


def test_plans_are_stored_and_failures_are_reported(pods, monkeypatch, tmp_path):
    calls = []

    def run(words, **_):
        calls.append(words)
        refused = "v5e-9" in words
        return subprocess.CompletedProcess(words, 2 if refused else 0, json.dumps(PLAN))

    monkeypatch.setattr(pods.subprocess, "run", run)
    monkeypatch.setattr(pods, "microbatches", lambda config, pod, overrides: 4)
    arguments = ("configs/albert.py:xxlarge", "v5e-8", tmp_path, [("num_train_steps", "9")])
    for _ in range(2):
        assert pods.load_or_plan(*arguments) == PLAN
    assert [each.name for each in tmp_path.iterdir()] == ["albert_xxlarge_v5e-8.json"]
    (words,) = calls
    assert words[2:] == [
        "bertjax",
        "plan",
        "--config",
        "configs/albert.py:xxlarge",
        "--topology",
        "v5e-8",
        "--json",
        "--config.num_train_steps=9",
        "--config.data.microbatches=4",
    ]
    with pytest.raises(UserError, match=r"topology v5e-9.* exit status 2"):
        pods.load_or_plan("configs/albert.py:xxlarge", "v5e-9", tmp_path)
