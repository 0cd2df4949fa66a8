"""Before the first step of a pretraining: warnings about its config, steps of its epochs."""

import pathlib

import pytest

from bertjax import build
from bertjax.config import load_config, replace_fields
from bertjax.corpus.prepare import prepare
from bertjax.errors import UserError
from bertjax.runs import pretrain_job
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


def test_epochs_become_the_steps_that_read_every_document_so_often(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "text.txt").write_text("\n\n".join(["a b c", "d e f"] * 20))
    prepare([str(tmp_path / "text.txt")], tmp_path, tmp_path / "corpus", workers=1)
    overrides = {
        "num_train_epochs": 3.5,
        "data.corpus": str(tmp_path / "corpus"),
        "data.format": "doc-sentences",
        "data.pair": "none",
        "data.phases": (),
        "data.batch_size": 4,
        "objectives.sentence_pair": "none",
        "model.vocab_size": len(pieces),
    }
    config, logged = load_config(str(CONFIG), overrides), []
    found = pretrain_job.epochs_to_steps(config, logged.append)
    assert found.num_train_steps == 35  # 3.5 * 40 / 4
    assert found.optimizer.warmup_steps <= 35
    assert "num_train_epochs" not in found
    for fields, words in (
        ({"data.phases": ((9, 64, 8),)}, "counted in steps"),
        ({"data.mixture": (("a", "corpus", 1.0),)}, "a mixture, whose corpora have epochs"),
    ):
        with pytest.raises(UserError, match=words):
            pretrain_job.epochs_to_steps(replace_fields(config, fields), logged.append)
    with pytest.raises(UserError, match=r"num_train_epochs: got 3\.5, expected num_train_steps"):
        require_steps(config)
