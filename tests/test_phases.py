"""Phases of a run: shapes, microbatches, and errors."""

import numpy as np
import pytest

from bertjax import build
from bertjax.config import load_config, replace_fields
from bertjax.errors import UserError
from bertjax.pretrainer import Pretrainer
from bertjax.profiling import dummy
from bertjax.train.sharding import to_global

pytestmark = pytest.mark.slow


@pytest.fixture
def config():
    shape = {"data.max_seq_length": 8, "data.batch_size": 8, "model.vocab_size": 97}
    rates = {"optimizer.warmup_steps": 1, "optimizer.learning_rate": 1e-2}
    config = load_config("configs/bert.py:tiny", [])
    return replace_fields(config, {"num_train_steps": 10, "data.phases": (), **shape, **rates})


def test_a_run_of_one_shape_is_one_phase(config):
    assert build.phases(replace_fields(config, {"data.microbatches": 2})) == [
        build.Phase(10, 8, 8, 2)
    ]


def test_a_phase_has_the_microbatches_of_the_run_or_its_own(config):
    phases = ((6, 8, 16), (4, 16, 8, 4))
    config = replace_fields(config, {"data.phases": phases, "data.microbatches": 2})
    found = build.phases(config)
    assert found == [build.Phase(6, 8, 16, 2), build.Phase(4, 16, 8, 4)]
    assert build.microbatches(found) == {(16, 8): 2, (8, 16): 4}
    assert build.microbatches(found[:1]) == 2


@pytest.mark.parametrize(
    ("phases", "output"),
    [
        (((10, 8),), r"config.data.phases: got \(10, 8\), expected \(steps, length, batch_size\)"),
        (((10, 8, 8, 1, 1),), r"got \(10, 8, 8, 1, 1\), expected"),
        (((9, 8, 8),), "got 9 steps in total, expected config.num_train_steps=10"),
        (((6, 8, 8, 1), (4, 8, 8, 2)), "of one length and batch size with different"),
    ],
)
def test_a_user_error_is_one_line(config, phases, output):
    with pytest.raises(UserError, match=output):
        build.phases(replace_fields(config, {"data.phases": phases}))


def test_a_phase_with_indivisible_microbatches_is_refused(config):
    phases = build.phases(replace_fields(config, {"data.phases": ((6, 8, 16), (4, 16, 8, 3))}))
    build.make_mesh(config, phases[:1])
    with pytest.raises(UserError, match="microbatches=3 equal parts; nearest: 6, 9"):
        build.make_mesh(config, phases)


def steps(config):
    """Metrics of a step of each phase, and its program."""
    phases = build.phases(config)
    objectives = build.objectives(config.objectives, build.tokenizer_fields(config))
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    mesh = build.make_mesh(config, phases)
    rows = [dummy.random_batch(config, phase) for phase in phases]
    trainer = build.trainer(config, pretrainer, mesh, rows[0], phases=phases)
    state, found, programs = trainer.create_state(), [], []
    for each in rows:
        batch = to_global(each, mesh)
        step = trainer.train_step.compile(state, batch)
        programs.append(step.function.as_text())
        state, metrics = step(state, batch)
        found.append({name: float(value) for name, value in metrics.items()})
    return found, programs


def test_phases_have_their_microbatches_and_equal_gradients(config):
    config = replace_fields(config, {"mesh.data": 2, "mesh.fsdp": 4, "model.precision": "float32"})
    whole, in_whole = steps(replace_fields(config, {"data.phases": ((6, 8, 16), (4, 16, 32))}))
    parted, in_parts = steps(replace_fields(config, {"data.phases": ((6, 8, 16), (4, 16, 32, 4))}))
    for one, other in zip(whole, parted, strict=True):
        assert one.keys() == other.keys()
        np.testing.assert_allclose([*one.values()], [other[name] for name in one], rtol=1e-4)
    # Of 32 rows a device has four, now one at a time; of 16 two, as before.
    assert ["[4,16,128]" in program for program in (in_whole[1], in_parts[1])] == [True, False]
    assert "[1,1,16,128]" in in_parts[1]
    assert "[2,8,128]" in in_whole[0]
    assert "[2,8,128]" in in_parts[0]
