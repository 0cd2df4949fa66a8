"""Before the first step of a pretraining: warnings about its config, steps of its epochs."""

import pathlib
import subprocess
import sys

import pytest

from bertjax import build
from bertjax.config import load_config, replace_fields
from bertjax.corpus.prepare import prepare
from bertjax.errors import UserError
from bertjax.io import copies
from bertjax.runs import bucket_sync, pretrain_job
from bertjax.runs.workdir import claim
from bertjax.validation.config import require_steps

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "configs" / "quickstart.py"


@pytest.mark.parametrize(
    ("held_out", "fields", "logged"),
    [
        (None, {}, "no held-out examples, so config.best_metric=held_out/mlm/loss is never"),
        (None, {"keep_best": 0}, None),
        (
            (),
            {"eval_every": 500, "checkpoint_every": 300},
            "steps with both, every 1,500",
        ),
        ((), {"eval_every": 500, "checkpoint_every": 1000}, None),
        ((), {"eval_every": 500, "checkpoint_every": 250}, None),
        ((), {"eval_every": 500, "checkpoint_every": 0}, None),
        ((), {"eval_every": 0, "checkpoint_every": 300}, None),
        ((), {"eval_every": 500, "checkpoint_every": 300, "keep_best": 0}, None),
    ],
)
def test_a_best_checkpoint_that_is_never_compared_is_a_warning(held_out, fields, logged):
    lines = []
    config = replace_fields(load_config(str(CONFIG)), fields)
    pretrain_job._warn_about_best(config, held_out, lines.append)
    assert len(lines) == (logged is not None)
    assert not logged or logged in lines[0]


@pytest.mark.parametrize(("limit", "lines"), [(0, 0), (9, 0), (8, 1)])
def test_a_limit_of_predictions_below_the_masked_share_is_a_warning(limit, lines):
    logged = []
    fields = {
        "objectives.mlm.max_predictions_per_seq": limit,
        "objectives.mlm.masked_lm_prob": 0.15,
    }
    config = replace_fields(load_config(str(CONFIG)), fields)
    phases = [build.Phase(1, 64, 8), build.Phase(1, 16, 8), build.Phase(2, 64, 8)]
    pretrain_job._warn_about_predictions(config, phases, logged.append)
    assert len(logged) == lines
    assert not lines or "got 8, expected >= 10 for masked_lm_prob=0.15 of 64 tokens" in logged[0]


@pytest.fixture
def fields(tmp_path):
    """Fields of a config of a corpus of 40 documents."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "text.txt").write_text("\n\n".join(["a b c", "d e f"] * 20))
    prepare([str(tmp_path / "text.txt")], tmp_path, tmp_path / "corpus", workers=1)
    return {
        "data.corpus": str(tmp_path / "corpus"),
        "data.format": "doc-sentences",
        "data.pair": "none",
        "data.phases": (),
        "data.batch_size": 4,
        "objectives.sentence_pair": "none",
        "model.vocab_size": len(pieces),
    }


def test_epochs_become_the_steps_that_read_every_document_so_often(fields):
    config, logged = load_config(str(CONFIG), fields | {"num_train_epochs": 3.5}), []
    found = pretrain_job.epochs_to_steps(config, logged.append)
    assert found.num_train_steps == 35  # 3.5 * 40 / 4
    assert found.optimizer.warmup_steps <= 35
    assert "num_train_epochs" not in found
    for changes, words in (
        ({"data.phases": ((9, 64, 8),)}, "counted in steps"),
        ({"data.mixture": (("a", "corpus", 1.0),)}, "a mixture, whose corpora have epochs"),
    ):
        with pytest.raises(UserError, match=words):
            pretrain_job.epochs_to_steps(replace_fields(config, changes), logged.append)
    with pytest.raises(UserError, match=r"num_train_epochs: got 3\.5, expected num_train_steps"):
        require_steps(config)


TRY_LOCK = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def test_preparing_a_run_in_a_bucket_keeps_the_lock_and_the_files_of_its_folder(
    fields, tmp_path, monkeypatch
):
    """The bucket still has the `config.json` of the start before."""
    monkeypatch.setattr(copies, "cache_path", lambda purpose, path: tmp_path / purpose)
    monkeypatch.setattr(bucket_sync.storage, "to_path", pathlib.PurePosixPath)
    monkeypatch.setattr(
        copies, "download_files", lambda bucket, folder, include: (folder / "config.json").unlink()
    )
    folder = bucket_sync.local_path("gs://bucket/runs/it")
    with claim(folder, {"seed": 1}):
        config = load_config(str(CONFIG), fields)
        job = pretrain_job.prepare(config, "gs://bucket/runs/it", lambda line: None)
        assert job.workdir == folder
        assert (folder / "config.json").exists()
        words = [sys.executable, "-S", "-c", TRY_LOCK, folder / ".lock"]
        assert subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode != 0
