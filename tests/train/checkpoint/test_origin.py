"""Initialisation from another run: selected checkpoint, strict matching, placement on a mesh."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.errors import UserError
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint.folder import Retention
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.sharding import make_mesh


def tree(value, **changes):
    """A state whose encoder is filled with `value`; `changes` adds arrays to the encoder."""
    encoder = {"embeddings": {"table": jnp.full((8, 3), value)}, "bias": jnp.full((5,), value)}
    head = {"kernel": jnp.full((3, 2), value)}
    return {"params": {"encoder": encoder | changes, "mlm": head}, "step": jnp.zeros((), jnp.int32)}


@pytest.fixture
def run(tmp_path):
    """A run with checkpoints 10, 20 and 30, of which 20 is the best."""
    config = {"best_metric": "held_out/mlm_loss", "best_mode": "min", "model": {"name": "bert"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with Checkpoints(tmp_path, keep=Retention(latest=3)) as checkpoints:
        for step, loss in [(10, 3.0), (20, 1.0), (30, 2.0)]:
            checkpoints.save(tree(float(step)), step=step, metrics={"held_out/mlm_loss": loss})
    return tmp_path


def fresh(**changes):
    return jax.tree.map(jnp.zeros_like, tree(1.0, **changes)["params"]) | {"glue": jnp.ones((3, 2))}


@pytest.mark.parametrize(("which", "step"), [("", 30), ("@10", 10), ("@best", 20)])
def test_a_name_selects_a_checkpoint(run, which, step):
    origin = checkpoint_origin.resolve(f"{run}{which}")
    assert origin.run == run
    assert origin.checkpoint == run / "checkpoints" / str(step)
    assert origin.config["model"] == {"name": "bert"}
    taken = checkpoint_origin.load_params(origin.checkpoint, fresh())
    assert (taken["encoder"]["bias"] == step).all()
    assert origin.description()["step"] == step


def test_random_parameters_of_a_run(run):
    origin = checkpoint_origin.resolve(f"random:{run}")
    assert origin.checkpoint is None
    assert origin.description() == {"step": 0, "encoder": "random"}


def test_only_the_encoder_is_loaded(run):
    taken = checkpoint_origin.load_params(run / "checkpoints" / "20", fresh())
    assert (taken["encoder"]["embeddings"]["table"] == 20).all()
    assert (taken["encoder"]["bias"] == 20).all()
    assert (taken["mlm"]["kernel"] == 0).all()
    assert (taken["glue"] == 1).all()


def test_loaded_arrays_keep_their_placement(run):
    mesh = make_mesh({"data": 2, "fsdp": 4, "tensor": 1, "sequence": 1})
    params = fresh()
    sharding = NamedSharding(mesh, PartitionSpec("fsdp"))
    params["encoder"]["embeddings"]["table"] = jax.device_put(
        np.zeros((8, 3), np.float32), sharding
    )
    taken = checkpoint_origin.load_params(run / "checkpoints" / "10", params)
    table = taken["encoder"]["embeddings"]["table"]
    assert table.sharding == sharding
    assert (np.asarray(table) == 10).all()


def test_descriptions_distinguish_encoders(run):
    names = [f"{run}@10", f"{run}@20", str(run), f"{run}@30"]
    encoders = [checkpoint_origin.resolve(name).description()["encoder"] for name in names]
    assert len(set(encoders)) == 3
    assert encoders[2] == encoders[3]


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"extra": jnp.zeros(2)}, ["missing     extra  float32[2]"]),
        (
            {"bias": jnp.zeros(7)},
            ["differs     bias  got float32[5], expected float32[7]"],
        ),
        (
            {"embeddings": {"rows": jnp.zeros((8, 3))}},
            [
                "missing     embeddings/rows  float32[8, 3]",
                "unexpected  embeddings/table  float32[8, 3]",
            ],
        ),
    ],
)
def test_an_encoder_that_differs_is_refused_with_a_table(run, changes, rows):
    checkpoint = run / "checkpoints" / "10"
    with pytest.raises(UserError) as caught:
        checkpoint_origin.load_params(checkpoint, fresh(**changes))
    first, *table = str(caught.value).splitlines()
    assert f"{len(rows)} of" in first
    assert "arrays of the encoder do not match" in first
    assert [row.strip() for row in table] == rows


def test_a_long_table_is_truncated(run):
    changes = {f"layer_{i}": jnp.zeros(1) for i in range(12)}
    with pytest.raises(UserError, match=r"12 of 14 arrays(.|\n)*\n  and 4 more$"):
        checkpoint_origin.check(run / "checkpoints" / "10", fresh(**changes))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random", r"pass the folder of a run as RUN"),
        ("{run}/nowhere", r"nowhere is not a run: it has no config.json; pass the --workdir"),
        ("{run}@15", r"no checkpoint '15' in .*, expected one of 10, 20, 30, best"),
        ("{run}@newest", r"no checkpoint 'newest' in"),
    ],
)
def test_unknown_runs_and_checkpoints_are_named(run, name, message):
    with pytest.raises(UserError, match=message):
        checkpoint_origin.resolve(name.format(run=run))


def test_damage_is_reported_with_a_suggestion(run):
    path = run / "checkpoints" / "30" / "checkpoint.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(UserError, match=r"30 is damaged \(checkpoint.json .*as in RUN@20"):
        checkpoint_origin.resolve(str(run))
    assert checkpoint_origin.resolve(f"{run}@20").checkpoint.name == "20"


def test_a_run_without_checkpoints_or_without_the_metric(run, tmp_path):
    config = json.loads((run / "config.json").read_text()) | {"best_metric": "held_out/accuracy"}
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError, match=r"no checkpoint in .* has 'held_out/accuracy': pass a step"
    ):
        checkpoint_origin.resolve(f"{run}@best")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text('{"glue": {}}')
    with pytest.raises(UserError, match=r"empty has no model: got a config\.json with glue"):
        checkpoint_origin.resolve(f"random:{empty}")
    (empty / "config.json").write_text('{"model": {}}')
    with pytest.raises(UserError, match=r"has no complete checkpoint: wait for the run's first"):
        checkpoint_origin.resolve(str(empty))


def test_a_seed_of_a_fine_tuning_run_is_a_run(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model": {"name": "bert"}}))
    with Checkpoints(tmp_path / "seed_3") as checkpoints:
        checkpoints.save(tree(5.0), step=40)
    origin = checkpoint_origin.resolve(f"{tmp_path}/seed_3")
    assert (origin.run, origin.checkpoint.name) == (tmp_path, "40")
    with pytest.raises(UserError, match="fine-tuning run, which has no best_metric: omit @best"):
        checkpoint_origin.resolve(f"{tmp_path}/seed_3@best")


def test_a_finished_seed_is_its_selected_epoch(tmp_path):
    """With choose_epoch=best, the newest checkpoint is kept as well."""
    (tmp_path / "config.json").write_text(json.dumps({"model": {"name": "bert"}}))
    with Checkpoints(tmp_path / "seed_3", keep=Retention(latest=3)) as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save(tree(float(step)), step=step)
    result = {"chosen_epoch": 2, "epochs": [{"epoch": e, "step": 10 * e} for e in (1, 2, 3, 4)]}
    (tmp_path / "seed_3" / "result.json").write_text(json.dumps(result))
    assert checkpoint_origin.resolve(f"{tmp_path}/seed_3").checkpoint.name == "20"
    assert checkpoint_origin.resolve(f"{tmp_path}/seed_3@30").checkpoint.name == "30"
    (tmp_path / "seed_3" / "result.json").write_text(json.dumps(result | {"chosen_epoch": 4}))
    with pytest.raises(UserError, match=r"lacks step 40, .* got 10, 20, 30; pass one, as in"):
        checkpoint_origin.resolve(f"{tmp_path}/seed_3")


def test_arrays_are_placed_like_the_given_shapes():
    mesh = make_mesh({"data": 4, "fsdp": 2, "tensor": 1, "sequence": 1})
    along = NamedSharding(mesh, PartitionSpec("fsdp"))
    shapes = {"a": {"kernel": jax.ShapeDtypeStruct((8, 3), jnp.float32, sharding=along)}}
    arrays = {"a": {"kernel": np.arange(24, dtype=np.float32).reshape(8, 3)}}
    placed = checkpoint_origin.place(arrays, shapes, "teacher")
    np.testing.assert_array_equal(placed["a"]["kernel"], arrays["a"]["kernel"])
    assert placed["a"]["kernel"].sharding == along
    for wrong in ({}, {"a": {"kernel": np.zeros((8, 2), np.float32)}}, arrays | {"b": np.zeros(2)}):
        with pytest.raises(UserError, match=r"1 of . arrays of the teacher do not match"):
            checkpoint_origin.place(wrong, shapes, "teacher")
