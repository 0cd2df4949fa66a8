"""The tokenizer beside an exported model: `tokenizer.json` and what AutoTokenizer wants to know.

Its class is always `PreTrainedTokenizerFast`, which does what `tokenizer.json` says. The classes
that are named after models make a tokenizer of the vocabulary alone, and lose normalisations.
"""

import pathlib
import tempfile
from typing import Any

from bertjax.compat.json_file import write_json
from bertjax.data.tokenizer_folder import METADATA

_ROLES = ("pad", "unk", "cls", "sep", "mask")

CONFIG, DEFINITION = "tokenizer_config.json", "tokenizer.json"


def write(folder: pathlib.Path, tokenizer: Any, *, longest: int, has_segments: bool) -> None:
    """Writes the tokenizer into a model's folder.

    Args:
      folder: Of the model.
      tokenizer: A `Tokenizer` with its `kind`.
      longest: Tokens that the model reads at most.
      has_segments: Whether the model tells segments apart.

    Raises:
      UserError: a `tokenizer.json` cannot say what the tokenizer does.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        saved = pathlib.Path(temporary, "tokenizer")
        tokenizer.save(str(saved))
        if not (saved / DEFINITION).is_file():
            from bertjax.compat.sentencepiece_definition import definition

            model = (saved / "spiece.model").read_bytes()
            write_json(saved / DEFINITION, definition(model, tokenizer))
        for path in saved.iterdir():
            if path.name not in (METADATA, CONFIG):
                path.rename(folder / path.name)
    ids = {role: getattr(tokenizer, f"{role}_id") for role in _ROLES}
    names = {
        f"{role}_token": tokenizer.pieces([identity])[0]
        for role, identity in ids.items()
        if identity is not None
    }
    inputs = ["input_ids", *(["token_type_ids"] if has_segments else []), "attention_mask"]
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": inputs,
        "model_max_length": longest,
        **names,
    }
    write_json(folder / CONFIG, content)
