"""Lookup of plug-ins: a name in a config is the name of a file."""

import pathlib
import shutil
import sys

import pytest

from bertjax import catalog
from bertjax.config import load_config
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


def test_a_config_of_bertjax_is_found_by_name_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for spec in ("bert:mini", "configs/bert.py:mini"):
        assert load_config(spec).model.hidden_size == 256
    assert load_config("bert").model.hidden_size == 768
    with pytest.raises(UserError, match=r"got 'bret:mini', expected the name of a config"):
        load_config("bret:mini")


def test_a_config_in_a_wheel_imports_libraries_and_not_modules_of_bertjax(
    root, tmp_path, monkeypatch
):
    """There `configs/` is a folder of the package, next to folders such as `tokenizers`."""
    package = tmp_path / "bertjax"
    shutil.copytree(root / "configs", package / "configs")
    source = (package / "configs" / "bert.py").read_text()
    (package / "configs" / "mine.py").write_text(f"{source}\nimport made_up_library\n")
    (package / "__init__.py").touch()
    (package / "made_up_library.py").write_text("raise AssertionError('a module of bertjax')")
    library = tmp_path / "site"
    library.mkdir()
    (library / "made_up_library.py").write_text("")
    monkeypatch.syspath_prepend(str(library))
    files = {path.stem: path for path in (package / "configs").glob("*.py")}
    monkeypatch.setattr(catalog, "config_files", lambda: files)
    assert load_config("mine:mini").model.hidden_size == 256


def test_a_config_of_the_users_own_imports_those_of_a_wheel(root, tmp_path, monkeypatch):
    """Before them, those in a folder `configs` next to it."""
    shipped = tmp_path / "site" / "bertjax" / "configs"
    shutil.copytree(root / "configs", shipped)
    files = {path.stem: path for path in shipped.glob("*.py")}
    monkeypatch.setattr(catalog, "config_files", lambda: files)
    others = [place for place in sys.path if not pathlib.Path(place, "configs").is_dir()]
    monkeypatch.setattr(sys, "path", others)
    monkeypatch.chdir(tmp_path)
    for folder in ("alone", "project", "project/configs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(
            "from configs import bert\n\n\ndef get_config():\n    return bert.get_config('mini')\n"
        )
    source = (shipped / "bert.py").read_text()
    narrow = source.replace("bert_model(size)", "bert_model('tiny')")
    (tmp_path / "project" / "configs" / "bert.py").write_text(narrow)
    for folder, width in (
        ("alone", 256),
        ("project", 128),
        ("project/configs", 128),
        ("alone", 256),
    ):
        assert load_config(str(tmp_path / folder / "mine.py")).model.hidden_size == width
