"""Writers of predictions on a full disk: a one-line error, and the old file is kept."""

import types
import uuid

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.glue import predictions as glue_predictions
from bertjax.tasks.glue.table import glue_task
from bertjax.tasks.multiple_choice import predictions as multiple_choice_predictions
from bertjax.tasks.ner import conll as ner_conll
from bertjax.tasks.ner.conll import Sentence
from bertjax.tasks.squad import answers as squad_answers

WORDS = Sentence(("Oslo",), ("O",), ((),), ("FILE:1",), 0)
BEST = squad_answers.PredictedAnswers(
    ["q"], [[squad_answers.Candidate("a", 1.0, 0.0, 0.0)]], None, None
)
WRITERS = {
    "RTE.tsv": lambda path: glue_predictions.write(path, glue_task("rte"), ["0"], np.array([1])),
    "dev.json": lambda path: multiple_choice_predictions.write(path, ["q"], [0]),
    "dev.txt": lambda path: ner_conll.write(path, [WORDS], [("O",)]),
    "predictions.json": lambda path: squad_answers.write(path.parent, BEST),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_line_and_keeps_the_old_file(name, tmp_path, monkeypatch):
    path = tmp_path / "predictions" / name
    WRITERS[name](path)
    before = path.read_bytes()
    monkeypatch.setattr(uuid, "uuid4", lambda: types.SimpleNamespace(hex="0"))
    path.with_name(f".{name}.0.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=rf"cannot write .*{name}: No space left") as caught:
        WRITERS[name](path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert not path.with_name(f".{name}.0.part").is_symlink()
    WRITERS[name](path)


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "predictions").write_text("")
    with pytest.raises(UserError, match="cannot write "):
        WRITERS["RTE.tsv"](tmp_path / "predictions" / "RTE.tsv")
