"""Overrides on the command line: splitting, replacing, and numbers of tokens for steps."""

import re

import pytest

from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.overrides import split_overrides, with_overrides


def test_a_number_of_tokens_becomes_a_number_of_steps(root, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(root)
    spec = f"{root}/configs/bert.py:tiny"
    changes = {"num_train_tokens": 640_000, "data.phases": (), "data.batch_size": 10}
    config = load_config(spec, changes | {"data.max_seq_length": 64}, log=lambda _: None)
    assert config.num_train_steps == 1000
    assert "num_train_tokens" not in config
    assert config.optimizer.warmup_steps == 10  # of 10,000 in 1,000,000 steps
    recipe = tmp_path / "own.py"
    recipe.write_text(
        "from configs import bert\n"
        "def get_config():\n"
        "    config = bert.get_config('tiny')\n"
        "    config.data.phases, config.num_train_tokens = (), 2_560_000\n"
        "    return config\n"
    )
    assert load_config(str(recipe)).num_train_steps == 78
    longer = load_config(str(recipe), {"num_train_steps": 90})  # as the printed extension of a run
    assert longer.num_train_steps == 90
    assert "num_train_tokens" not in longer
    recipe.write_text(recipe.read_text().replace("2_560_000", "0"))
    with pytest.raises(UserError, match="num_train_tokens: got 0"):
        load_config(str(recipe))
    argv = with_overrides(["--config.num_train_tokens=9"], {"num_train_steps": 5})
    assert argv == ["--config.num_train_steps=5"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_train_steps": 7}, "got num_train_steps=7 with num_train_tokens=9000, expected one"),
        ({"num_train_epochs": 7}, "num_train_tokens=9000 with num_train_epochs=7, expected one"),
        ({"data.phases": ((9, 64, 8),)}, "counted in steps; set --config.data.phases='()'"),
        ({"num_train_tokens": 0}, "got 0"),
    ],
)
def test_a_number_of_tokens_next_to_steps_is_refused(root, changes, words):
    with pytest.raises(UserError, match=re.escape(words)):
        load_config(f"{root}/configs/quickstart.py", {"num_train_tokens": 9000} | changes)


def test_overrides_are_split_from_the_arguments():
    argv = ["--config", "a.py", "--config.x.y=1=2", "--workdir", "w", "--config.z", "-3"]
    rest, overrides = split_overrides(argv)
    assert rest == ["--config", "a.py", "--workdir", "w"]
    assert overrides == [("x.y", "1=2"), ("z", "-3")]


@pytest.mark.parametrize("argv", [["--config.x"], ["--config.x", "--workdir"]])
def test_an_override_without_a_value_is_refused(argv):
    with pytest.raises(UserError, match=r"--config\.x requires a value"):
        split_overrides(argv)
