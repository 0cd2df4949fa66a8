"""`--print_config`: every field of every config has a meaning, also those of the modules."""

import pathlib

import pytest

from bertjax.config import load_config
from bertjax.validation import describe

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
SPECS = (
    *("bert.py:base", "gpt2.py:tiny", "electra.py:tiny", "xlnet.py:tiny", "elmo.py:tiny"),
    *("distilbert.py:tiny", "albert.py:tiny", "vit.py:tiny", "spanbert.py:tiny"),
    *("universal_transformer.py:tiny", "text_infilling.py:tiny", "masked_seq2seq.py:tiny"),
    *("glue.py:rte", "squad.py:squad2", "ner.py:conll2003", "race.py:race"),
)


@pytest.mark.parametrize("spec", SPECS)
def test_every_field_has_a_meaning(spec):
    lines = list(describe.lines(load_config(f"{CONFIGS}/{spec}")))
    pairs = zip(lines, [*lines[1:], ""], strict=True)
    missing = [
        line for line, below in pairs if line.startswith("  --") and not below.startswith("      ")
    ]
    assert not missing


def test_fields_that_the_config_leaves_out_are_listed_with_their_defaults():
    lines = list(describe.lines(load_config(f"{CONFIGS}/bert.py:base")))
    place = lines.index("  --config.model.output_hidden_states=False")
    assert "hidden_states" in lines[place + 1]
    assert "  --config.model.hidden_size=768" in lines
    # Likewise those of sections that are no module.
    assert "  --config.tensorboard=False" in lines
    assert "  --config.optimizer.frozen_layers=-1" in lines


def test_epochs_of_a_pretraining_are_printed_in_place_of_the_steps_of_the_file():
    spec = f"{CONFIGS}/bert.py:tiny"
    assert "  --config.num_train_steps=1000000" in describe.lines(load_config(spec))
    lines = list(describe.lines(load_config(spec, {"num_train_epochs": 3})))
    assert "  --config.num_train_epochs=3.0" in lines
    assert not any("--config.num_train_steps=" in line for line in lines)
