"""LTG-BERT: the variant that the code of a folder computes, and its place in `config.json`."""

import json

import pytest

from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import importing
from bertjax.huggingface.model import read_arrays
from bertjax.tokenizers import tokenizer as tokenizers

BY_HEAD = "value = self.in_proj_v(x)\npos.view(-1, self.num_heads, 2*self.head_size)\n"
BY_PART = "value = self.in_proj_v(x)\npos.view(-1, 2, self.num_heads, self.head_size)\n"


@pytest.fixture(scope="module")
def exported(gpt_bert_tokenizer, write_random_run, export_run, tmp_path_factory):
    """Random parameters, and the folder that a run with them is exported to."""
    folder = tmp_path_factory.mktemp("ltg_bert")
    (folder / "tokenizer.json").write_text(gpt_bert_tokenizer)
    tokenizer = tokenizers.load(folder / "tokenizer.json")
    config = configs.load_config("configs/gpt_bert.py:tiny,mlm", [])
    with config.unlocked():
        config.model.update(vocab_size=tokenizer.vocab_size, max_position_embeddings=48)
    params = write_random_run(folder / "run", config, tokenizer)
    export_run(folder / "run", folder / "hf")
    return params, folder / "hf"


@pytest.fixture
def released(exported, save_gpt_bert, tmp_path):
    """Writes a folder as it is released: no field names the variant, code may show it."""
    arrays, config = read_arrays(exported[1]), json.loads((exported[1] / "config.json").read_text())
    assert config.pop("interleaved_positions") is False

    def write(code, **fields):
        folder = save_gpt_bert(tmp_path / "source", arrays, config | fields)
        if code:
            (folder / "modeling_ltgbert.py").write_text(code)
        return folder

    return write


def test_import_then_export_gives_the_same_folder(exported, export_run, tmp_path):
    params, folder = exported
    imported = importing.read(folder)
    assert list(imported.config.objectives) == ["mlm"]
    name = "encoder/layers/block/attention/norm/scale"
    assert imported.params[name].tobytes() == params[name].tobytes()
    importing.write(imported, tmp_path / "run")
    assert export_run(tmp_path / "run", tmp_path / "back").class_name == "LtgbertForMaskedLM"
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes(), name


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (BY_HEAD, {}, True),
        (BY_PART, {}, False),
        ("", {"interleaved_positions": True}, True),
        (BY_HEAD, {"interleaved_positions": False}, False),
    ],
)
def test_the_code_of_a_folder_determines_the_variant(code, fields, expected, released, export_run):
    """Unless its config does; an export, which has no code, has it in its config."""
    source = released(code, model_type="bert", **fields)
    imported = importing.read(source)
    assert imported.config.imported.model_type == "ltg_bert"
    assert imported.config.model.interleaved_positions is expected
    importing.write(imported, source.parent / "run")
    export_run(source.parent / "run", source.parent / "back")
    config = json.loads((source.parent / "back" / "config.json").read_text())
    assert (config["interleaved_positions"], config["model_type"]) == (expected, "bert")
    assert not list((source.parent / "back").glob("*.py"))


@pytest.mark.parametrize("code", ["", "class Config:\n    pass\n"])
def test_a_folder_that_does_not_show_the_variant_is_refused(code, released):
    with pytest.raises(UserError, match=r"config.json lacks interleaved_positions, and the folder"):
        importing.read(released(code))
