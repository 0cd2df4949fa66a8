"""Checkpoints: saving, retention, damage and mismatches."""

import json
import logging
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint.folder import Retention
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.checkpoint.restore import load, load_numpy
from bertjax.train.checkpoint.trees import fingerprint

PROVENANCE = {"corpus": "c" * 64, "tokenizer": "d" * 64}


def state_at(step: int) -> dict:
    return {
        "step": jnp.int32(step),
        "params": {"encoder": {"kernel": jnp.arange(6.0).reshape(2, 3) * step}},
        "opt_state": (jnp.full((5,), step, jnp.bfloat16), None),
    }


TARGET = jax.eval_shape(lambda: state_at(0))


def save(workdir, steps, metrics=None, **options) -> None:
    with Checkpoints(workdir, provenance=PROVENANCE, **options) as checkpoints:
        for step in steps:
            checkpoints.save(state_at(step), step=step, metrics=(metrics or {}).get(step))


@pytest.fixture
def output() -> list[str]:
    return []


@pytest.fixture
def resume(tmp_path, output):
    def resume(target=TARGET, **options):
        options = {"provenance": PROVENANCE, "log": output.append} | options
        with Checkpoints(tmp_path, **options) as checkpoints:
            return checkpoints.resume(target)

    return resume


def largest_file(checkpoint: pathlib.Path) -> pathlib.Path:
    files = [path for path in (checkpoint / "state").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def truncate(checkpoint):
    path = largest_file(checkpoint)
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(checkpoint):
    path = largest_file(checkpoint)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def delete_a_file(checkpoint):
    largest_file(checkpoint).unlink()


def delete_the_record(checkpoint):
    (checkpoint / "checkpoint.json").unlink()


def spoil_the_integrity(checkpoint):
    (checkpoint / "integrity.json").write_text("{")


DAMAGES = [truncate, flip_a_bit, delete_a_file, delete_the_record, spoil_the_integrity]


def test_a_restored_state_equals_the_saved_one(tmp_path, resume, output):
    with Checkpoints(tmp_path, provenance=PROVENANCE) as checkpoints:
        checkpoints.save(state_at(3), step=3, metrics={"loss": 1.5}, hooks={"Report": {"n": 1}})
    state, record = resume()
    assert fingerprint(state) == fingerprint(state_at(3))
    assert jax.tree.structure(state) == jax.tree.structure(state_at(3))
    assert state["opt_state"][0].dtype == jnp.bfloat16
    assert (record.step, record.metrics, record.hooks) == (3, {"loss": 1.5}, {"Report": {"n": 1}})
    assert record.provenance == PROVENANCE
    assert record.arrays["params/encoder/kernel"] == {"shape": [2, 3], "dtype": "float32"}
    assert output == []


def test_nothing_to_resume_from_is_none(resume):
    assert resume() is None


def test_the_memory_of_a_saved_state_may_be_reused_at_once(tmp_path, resume):
    size = 3_000_000
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    state = jax.block_until_ready(step(jnp.zeros((size,))))
    with Checkpoints(tmp_path, provenance=PROVENANCE) as checkpoints:
        checkpoints.save({"x": state}, step=1)
        for _ in range(20):
            state = step(state)
    restored, _ = resume({"x": jax.ShapeDtypeStruct((size,), jnp.float32)})
    np.testing.assert_array_equal(restored["x"], np.ones(size, np.float32))


def test_restores_onto_any_mesh(tmp_path):
    values = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)

    def placed(shape, axes):
        auto = (jax.sharding.AxisType.Auto,) * len(shape)
        mesh = jax.make_mesh(shape, ("a", "b", "c")[: len(shape)], axis_types=auto)
        return jax.NamedSharding(mesh, jax.P(*axes))

    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save({"w": jax.device_put(values, placed((8,), ("a",)))}, step=1)
    meshes = [placed((2, 4), ("b", "a")), placed((2, 2, 2), (("a", "c"),)), placed((1,), ())]
    for sharding in meshes:
        target = {"w": jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding)}
        restored = load(tmp_path / "checkpoints" / "1", target)["w"]
        assert restored.sharding == sharding
        np.testing.assert_array_equal(restored, values)


def test_a_part_is_loaded_without_devices(tmp_path):
    save(tmp_path, [2])
    encoder = load_numpy(tmp_path / "checkpoints" / "2", "params/encoder")
    assert list(encoder) == ["kernel"]
    assert type(encoder["kernel"]) is np.ndarray
    np.testing.assert_array_equal(encoder["kernel"], np.arange(6).reshape(2, 3) * 2)


def test_newest_and_best_are_kept(tmp_path):
    metrics = {step: {"held_out/loss": loss} for step, loss in enumerate((5, 2, 9, 4, 3), 1)}
    with Checkpoints(
        tmp_path, keep=Retention(latest=2, best=1, metric="held_out/loss")
    ) as checkpoints:
        for step, measured in metrics.items():
            checkpoints.save(state_at(step), step=step, metrics=measured)
        checkpoints.wait()
        assert checkpoint_folder.steps(checkpoints.directory) == [2, 4, 5]
        assert (checkpoints.latest, checkpoints.best) == (5, 2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "4", "5"]


def test_a_step_is_saved_once(tmp_path):
    save(tmp_path, [4, 4])
    assert checkpoint_folder.steps(tmp_path / "checkpoints") == [4]


def test_metrics_of_the_newest_checkpoint_are_replaced(tmp_path):
    keep = Retention(latest=1, best=1, metric="held_out/loss")
    with Checkpoints(tmp_path, keep=keep) as checkpoints:
        checkpoints.save(state_at(1), step=1, metrics={"held_out/loss": 3.0})
        checkpoints.save(state_at(2), step=2, hooks={"Report": {"n": 1}})
    with Checkpoints(tmp_path, keep=keep) as checkpoints:
        checkpoints.resume(TARGET)
        assert checkpoints.best == 1
        found = {"held_out/loss": 2.0}
        checkpoints.save(state_at(2), step=2, metrics=found, hooks={"Report": {"n": 2}})
        assert checkpoints.best == 2
    assert checkpoint_folder.steps(tmp_path / "checkpoints") == [2]
    checkpoint = tmp_path / "checkpoints" / "2"
    assert checkpoint_folder.find_defect(checkpoint) is None
    record = checkpoint_folder.read_record(checkpoint)
    assert (record.metrics, record.hooks) == (found, {"Report": {"n": 2}})


def test_a_checkpoint_is_never_overwritten(tmp_path):
    save(tmp_path, [4])
    with pytest.raises(ValueError, match="already exists: resume"):
        save(tmp_path, [4])
    assert checkpoint_folder.find_defect(tmp_path / "checkpoints" / "4") is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_falls_back_with_a_warning(tmp_path, resume, output, damage):
    save(tmp_path, [1, 2])
    damage(tmp_path / "checkpoints" / "2")
    state, record = resume()
    assert record.step == 1
    assert fingerprint(state) == fingerprint(state_at(1))
    (line,) = output
    assert line.startswith("checkpoint 2 is damaged (")
    assert line.endswith("resuming from checkpoint 1")
    assert (tmp_path / "checkpoints" / "damaged-2").is_dir()
    save(tmp_path, [2])
    assert resume()[1].step == 2
    assert len(output) == 1


def test_damaged_checkpoints_are_skipped_and_the_newest_is_moved_aside(tmp_path, resume, output):
    save(tmp_path, [1, 2, 3])
    for step in (2, 3):
        truncate(tmp_path / "checkpoints" / str(step))
    assert resume()[1].step == 1
    assert [line.split()[1] for line in output] == ["2", "3"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "damaged-3"]


def test_if_all_checkpoints_are_damaged_an_error_is_raised(tmp_path, resume):
    save(tmp_path, [1, 2])
    for step in (1, 2):
        flip_a_bit(tmp_path / "checkpoints" / str(step))
    for _ in range(2):
        with pytest.raises(UserError, match=r"are damaged \(2: state/.*; 1: state/"):
            resume()
    assert checkpoint_folder.steps(tmp_path / "checkpoints") == [1, 2]


def test_an_incomplete_save_is_not_a_checkpoint(tmp_path, resume, output):
    save(tmp_path, [1, 2])
    cut = tmp_path / "checkpoints" / "3"
    (cut / "state.orbax-checkpoint-tmp").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".removing-0").mkdir()
    assert resume()[1].step == 2
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]
    assert output == []


def test_a_run_whose_only_save_is_incomplete_starts_from_the_beginning(tmp_path, resume, output):
    save(tmp_path, [1])
    (tmp_path / "checkpoints" / "1" / "integrity.json").unlink()
    assert resume() is None
    (line,) = output
    assert line.startswith("checkpoint 1 is damaged (never finished)")
    assert line.endswith("starting from step 0")


def test_another_corpus_is_refused(tmp_path, resume):
    save(tmp_path, [1])
    with pytest.raises(UserError) as error:
        resume(provenance=PROVENANCE | {"corpus": "e" * 64})
    assert "another corpus: got fingerprint cccccccccccccccc" in str(error.value)
    assert "expected eeeeeeeeeeeeeeee of this run" in str(error.value)


def test_the_fingerprint_of_an_earlier_version_is_accepted(tmp_path, resume):
    save(tmp_path, [1])
    changed = PROVENANCE | {"tokenizer": "e" * 64}
    assert resume(provenance=changed, former_provenance=PROVENANCE)[1].step == 1
    for former in ({}, {"tokenizer": "f" * 64}):
        with pytest.raises(UserError, match="another tokenizer"):
            resume(provenance=changed, former_provenance=former)


def test_other_shapes_are_refused_with_a_table(tmp_path, resume):
    save(tmp_path, [1])
    target = dict(TARGET)
    target["params"] = {"encoder": {"kernel": jnp.zeros((2, 5)), "bias": jnp.zeros((5,))}}
    with pytest.raises(UserError) as error:
        resume(target)
    first, *table = str(error.value).splitlines()
    assert "does not match this run: 2 of 4 arrays differ" in first
    assert [row.split() for row in table] == [
        ["array", "checkpoint", "this", "run"],
        ["params/encoder/bias", "absent", "float32[5]"],
        ["params/encoder/kernel", "float32[2,", "3]", "float32[2,", "5]"],
    ]


def test_surplus_arrays_are_refused(tmp_path, resume):
    save(tmp_path, [1])
    target = {name: leaf for name, leaf in TARGET.items() if name != "opt_state"}
    with pytest.raises(UserError, match=r"(?s)1 of 3 arrays differ.*bfloat16\[5\] +absent"):
        resume(target)


def test_another_dtype_is_refused(tmp_path, resume):
    save(tmp_path, [1])
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), TARGET)
    with pytest.raises(UserError, match=r"bfloat16\[5\] +float32\[5\]"):
        resume(target)


def test_a_record_of_another_format_is_named(tmp_path):
    save(tmp_path, [1])
    record = tmp_path / "checkpoints" / "1" / "checkpoint.json"
    record.write_text(json.dumps({"step": 1, "version": "9.9"}))
    with pytest.raises(UserError, match=r"fields step, version, expected .* wrote it, 9\.9"):
        checkpoint_folder.read_record(record.parent)


def refusal_of_a_save(checkpoints: Checkpoints, step: int) -> str:
    def save_and_wait():
        checkpoints.save(state_at(step), step=step)
        checkpoints.wait()

    with pytest.raises(UserError) as error:
        save_and_wait()
    return str(error.value)


@pytest.mark.parametrize("late", [False, True])
def test_a_full_disk_keeps_the_last_checkpoint_and_suggests_a_fix(
    tmp_path, resume, monkeypatch, late
):
    checkpoints = Checkpoints(tmp_path, provenance=PROVENANCE)
    checkpoints.save(state_at(1), step=1)
    checkpoints.wait()

    def full(*_):
        raise ValueError("RESOURCE_EXHAUSTED: Failed to write: No space left on device")

    with monkeypatch.context() as patch:
        if late:
            patch.setattr(checkpoint_folder, "finish", full)
        else:
            patch.setattr(checkpoints, "_start_writing", full)
        message = refusal_of_a_save(checkpoints, step=2)
    assert "the disk is full: checkpoint 2 could not be saved in" in message
    assert "the last one is 1; free some space" in message
    assert "\n" not in message
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1"]
    checkpoints.save(state_at(3), step=3)
    checkpoints.close()
    assert resume()[1].step == 3


def test_other_failures_are_not_hidden(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(checkpoint_folder, "finish", fails)
    with pytest.raises(RuntimeError, match="a defect"):
        save(tmp_path, [1])
    assert not list((tmp_path / "checkpoints").iterdir())


def test_saving_and_loading_print_nothing(tmp_path, resume, capfd, caplog):
    caplog.set_level(logging.INFO)
    save(tmp_path, [1, 2])
    resume()
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""
