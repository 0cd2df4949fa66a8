"""Lookup of plug-ins: a name in a config is the name of a file."""

import pytest

from bertjax import catalog
from bertjax.errors import UserError, nearest


def test_names_are_the_files_of_a_folder(root):
    files = {path.name for path in (root / "bertjax" / "models").glob("*.py")} - {"__init__.py"}
    assert {f"{name}.py" for name in catalog.names("models")} == files
    assert catalog.names("models") == sorted(catalog.names("models"))


@pytest.mark.parametrize(
    ("folder", "part", "attribute"),
    [
        ("models", None, "Model"),
        ("objectives", None, "Objective"),
        ("tasks", "head", "Task"),
        ("tasks", "dataset", "Dataset"),
        ("train/optimizers", None, "Optimizer"),
        ("train/schedules", None, "Schedule"),
    ],
)
def test_every_plug_in_defines_the_required_attributes(folder, part, attribute):
    for name in catalog.names(folder, part):
        assert hasattr(catalog.load(folder, name, part), attribute), f"{folder}/{name}"


def test_every_task_has_a_head_and_a_dataset():
    assert catalog.names("tasks", "head") == catalog.names("tasks", "dataset") != []


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"no 'brt' in bertjax/models/: did you mean 'bert'\?"):
        catalog.load("models", "brt")


def test_a_path_is_refused():
    with pytest.raises(UserError):
        catalog.load("models", "../errors")


def test_nearest_lists_all_names_where_none_is_near():
    assert nearest("zzz", ["mlm", "causal_lm"]) == "known: causal_lm, mlm"
    assert nearest("casual_lm", ["mlm", "causal_lm"]) == "did you mean 'causal_lm'?"
