"""WordPiece over bytes, without a prefix within words, as of LTG-BERT's released models."""

import numpy as np
import tokenizers as library
from tokenizers import decoders, models, pre_tokenizers

from bertjax.tokenizers.tokenizer import load

SPECIALS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
PIECES = ["\u0120n", "a", "\u00c3", "\u00af", "v"]  # two of them are the bytes of ï


def test_wordpiece_over_bytes(tmp_path):
    vocabulary = {piece: number for number, piece in enumerate(SPECIALS + PIECES)}
    wordpiece = models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix="")
    definition = library.Tokenizer(wordpiece)
    definition.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    definition.decoder = decoders.ByteLevel()
    definition.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(tmp_path / "tokenizer.json")
    assert tokenizer.encode_batch(["na\u00efv na"]) == [[5, 6, 7, 8, 9, 5, 6]]
    assert tokenizer.decode([5, 6, 7, 8, 9, 5, 6]).strip() == "na\u00efv na"
    assert np.flatnonzero(tokenizer.word_starts).tolist() == [0, 1, 2, 3, 4, 5]
    tokenizer.save(tmp_path / "copy")
    assert load(tmp_path / "copy").fingerprint == tokenizer.fingerprint
