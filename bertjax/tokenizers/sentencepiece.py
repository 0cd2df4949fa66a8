"""SentencePiece tokenizers (Kudo & Richardson 2018), such as those of ALBERT, XLNet and T5."""

import hashlib
import pathlib
import re
from collections.abc import Sequence

import numpy as np
import sentencepiece
from jaxtyping import Bool
from sentencepiece import sentencepiece_model_pb2

from bertjax.errors import UserError
from bertjax.tokenizers.folder import write_folder
from bertjax.tokenizers.special_tokens import SpecialTokens, trim_spaces

_KINDS = {1: "unigram", 2: "sentencepiece_bpe", 3: "words", 4: "characters"}

_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece

_LOOKS_SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")


class SentencePieceTokenizer:
    """Tokenizer defined by a `spiece.model`; special tokens are never matched in text.

    Attributes:
      kind: unigram, sentencepiece_bpe, words or characters.
      vocab_size: Number of pieces of the model.
      word_starts: Whether the piece of each id begins a word; True for special tokens.
      pair_separators: Number of [SEP] between two texts: one.
      fingerprint: SHA-256 of the model.
    """

    def __init__(self, model: bytes) -> None:
        """Builds the tokenizer from the content of a `spiece.model`.

        Raises:
          ValueError: the content is not a SentencePiece model.
        """
        parsed = _parse(model)
        specials = {
            piece.piece: identity
            for identity, piece in enumerate(parsed.pieces)
            if piece.type in (_Piece.CONTROL, _Piece.UNKNOWN)
        }
        self._model = model
        self._specials = SpecialTokens.from_spellings(specials)
        self._pieces = [piece.piece for piece in parsed.pieces]
        self._library = sentencepiece.SentencePieceProcessor(model_proto=parsed.SerializeToString())
        self.kind = _KINDS[parsed.trainer_spec.model_type]
        self.vocab_size = len(self._pieces)
        self.pad_id = self._specials.pad_id
        self.unk_id = self._library.unk_id()
        self.cls_id = self._specials.cls_id
        self.sep_id = self._specials.sep_id
        self.mask_id = self._specials.mask_id
        self.pair_separators = 1
        self.special_ids = tuple(self._specials.pieces)
        self.word_starts = self._find_word_starts()
        self.fingerprint = hashlib.sha256(model).hexdigest()

    def __reduce__(self) -> tuple[type["SentencePieceTokenizer"], tuple[bytes]]:
        return SentencePieceTokenizer, (self._model,)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Encodes each text to ids, without special tokens."""
        return self._library.encode(texts)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encodes a text to ids, and the (start, end) character span of each."""
        mapping = self._library.encode(text, return_type="offset_mapping")
        return mapping["ids"], trim_spaces(text, mapping["offsets"])

    def begins_word(self, ids: Sequence[int]) -> Bool[np.ndarray, " n"]:
        """Whether each token of an encoded text begins a word; see `interfaces.Tokenizer`."""
        begins = self.word_starts[list(ids)]
        begins[:1] = True
        return begins

    def decode(self, ids: list[int]) -> str:
        """Decodes ids to text, in which special tokens are spelled out.

        Raises:
          UserError: an id is not in the vocabulary.
        """
        self.ids_to_pieces(ids)
        return self._specials.decode_with_specials(ids, self._library.decode, " ")

    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the vocabulary's piece for each id.

        Raises:
          UserError: an id is not in the vocabulary.
        """
        for identity in ids:
            if not 0 <= identity < self.vocab_size:
                raise UserError(
                    f"id outside the vocabulary: got {identity}, expected 0 to "
                    f"{self.vocab_size - 1}"
                )
        return [self._pieces[identity] for identity in ids]

    def save(self, directory: str) -> None:
        """Saves a folder that `load` reads, with a `spiece.model`, atomically.

        Raises:
          UserError: the directory contains another tokenizer or other files.
        """
        files = {"spiece.model": self._model}
        write_folder(directory, files, main="spiece.model", tokenizer=self)

    def _find_word_starts(self) -> Bool[np.ndarray, " V"]:
        starts = np.array([piece.startswith("▁") for piece in self._pieces])
        starts[list(self.special_ids)] = True
        return starts


def read_sentencepiece(path: pathlib.Path) -> SentencePieceTokenizer:
    """Reads a `spiece.model`.

    Raises:
      UserError: the file is empty or not a SentencePiece model.
    """
    content = path.read_bytes()
    if not content:
        raise UserError(f"{path} is empty; expected a SentencePiece model")
    try:
        return SentencePieceTokenizer(content)
    except ValueError:
        raise UserError(f"{path} is not a SentencePiece model, or is corrupt") from None


def _parse(model: bytes) -> sentencepiece_model_pb2.ModelProto:
    """Parses a model, and changes it so that no special token is matched in text.

    SentencePiece matches user-defined pieces in text, but never control pieces. User-defined pieces
    that look like special tokens, such as XLNet's <eop>, become control pieces with the same ids.
    """
    parsed = sentencepiece_model_pb2.ModelProto()
    try:
        parsed.ParseFromString(model)
    except Exception as error:
        raise ValueError("not a SentencePiece model") from error
    if not any(piece.type == _Piece.UNKNOWN for piece in parsed.pieces):
        raise ValueError("a SentencePiece model without an unknown piece")
    for piece in parsed.pieces:
        if piece.type == _Piece.USER_DEFINED and _LOOKS_SPECIAL.fullmatch(piece.piece):
            piece.type = _Piece.CONTROL
    return parsed
