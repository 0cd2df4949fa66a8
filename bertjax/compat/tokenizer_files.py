"""The tokenizer beside an exported model: `tokenizer.json` and what AutoTokenizer wants to know.

Its class is always `PreTrainedTokenizerFast`, which does what `tokenizer.json` says. The classes
that are named after models make a tokenizer of the vocabulary alone, and lose normalisations.
"""

import math
import pathlib
import tempfile
from typing import Any

from bertjax.compat.json_file import read_json, write_json
from bertjax.compat.sequence_template import template
from bertjax.data.tokenizer_definitions import with_space_in_mask
from bertjax.data.tokenizer_folder import METADATA

_ROLES = ("pad", "unk", "cls", "sep", "mask")

CONFIG, DEFINITION = "tokenizer_config.json", "tokenizer.json"


def write(
    folder: pathlib.Path,
    tokenizer: Any,
    *,
    longest: float,
    has_segments: bool,
    cls_last: bool,
    writes: bool = False,
) -> None:
    """Writes the tokenizer into a model's folder.

    Args:
      folder: Of the model.
      tokenizer: A `Tokenizer` with its `kind`.
      longest: Tokens that the model reads at most; infinity for any number.
      has_segments: Whether the model tells segments apart.
      cls_last: Whether [CLS] ends a sequence; padding comes before it then, so that it is the last
        of every row, which is what transformers' classifiers of such models read.
      writes: Whether the model goes on with texts: nothing is added to these then, and padding
        comes before them.

    Raises:
      UserError: a `tokenizer.json` cannot say what the tokenizer does.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        saved = pathlib.Path(temporary, "tokenizer")
        tokenizer.save(str(saved))
        if not (saved / DEFINITION).is_file():
            from bertjax.compat import sentencepiece_definition

            model = (saved / "spiece.model").read_bytes()
            content = sentencepiece_definition.definition(model, tokenizer)
            write_json(saved / DEFINITION, content)
        definition = with_space_in_mask(read_json(saved / DEFINITION))
        if cls_last or writes:
            definition["post_processor"] = None if writes else template(tokenizer, cls_last=True)
        write_json(saved / DEFINITION, definition)
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
        **({"model_max_length": longest} if math.isfinite(longest) else {}),
        **({"padding_side": "left"} if cls_last or writes else {}),
        **names,
    }
    write_json(folder / CONFIG, content)
