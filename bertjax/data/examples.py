"""Examples made of sentences: example i of epoch e is a pure function of (seed, e, i).

`SentenceExamples` is the base class of the formats that Liu et al. 2019 compare (section 4.2): of
one segment in `data/formats/full-sentences.py` and `doc-sentences.py`, of two in `segment-pair.py`
and `sentence-pair.py`. The second segment of a pair:

  next    the following text (label 0), or half of the time another document's (label 1): BERT
  order   the following text, the two swapped half of the time (label 1): ALBERT
  none    the following text; no label

A document of one sentence, unless it is so long that it is split, has no following text: order and
none skip it, next pairs it with another document's segment.

`windows.py` places examples in the corpus, `sentence_table.py` reads their sentences, `segments.py`
chooses segments and builds the arrays; all functions are vectorised over examples.
"""

from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data import segments
from bertjax.data.format import PAIRS, Corpus, ExampleSpec, Format, HostBatch
from bertjax.data.layout import Layout, TextLocations
from bertjax.data.random import permute, uniforms
from bertjax.data.segments import Segment, assemble, assign_partners, sample_other_documents
from bertjax.data.sentence_table import SentenceTable
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.data.windows import DocumentWindows, SentencePairs, ShortenedWindows, StreamWindows
from bertjax.errors import UserError, nearest


class SentenceExamples:
    """All examples of a split of a corpus, in one format and one length.

    Attributes:
      format: Name of the format, in messages.
      num_segments: Number of segments of an example, 1 or 2.
      default_short_seq_prob: Share of examples of a random shorter length unless it is configured.
      separates_documents: Whether an example may continue in the next document, after a [SEP].
      pair: One of `PAIRS`.
      max_seq_length: L, special tokens included.
      seed: Seed of examples and order, together with the epoch.
      num_examples: Per epoch, the same number in each.
    """

    format: ClassVar[str]
    num_segments: ClassVar[int] = 1
    default_short_seq_prob: ClassVar[float] = 0.0
    separates_documents: ClassVar[bool] = False

    def __init__(
        self,
        corpus: Corpus,
        *,
        max_seq_length: int,
        seed: int,
        cls_id: int | None,
        sep_id: int | None,
        pad_id: int,
        pair: str = "none",
        short_seq_prob: float | None = None,
        word_starts: Bool[np.ndarray, " V"] | None = None,
        resegment: bool = True,
        cls_last: bool = False,
    ):
        """Locates the examples; does not read records.

        Args:
          corpus: One split.
          max_seq_length: L; shorter examples are padded.
          seed: Any integer.
          cls_id: First token of every example. Without [CLS] or [SEP] examples lack them (and
            documents follow each other without a separator), and pairs are not possible.
          sep_id: Last token of every segment, and of every document where documents are separated.
          pad_id: Padding.
          pair: One of `PAIRS`; "none" for the formats of one segment.
          short_seq_prob: Share of examples of a random shorter length; None for the default of the
            format. Sentence-pair supports only 0.
          word_starts: Whether each token of the vocabulary starts a word; adds `word_starts` to
            batches.
          resegment: Whether each epoch splits and pairs the text anew. Otherwise example i is the
            same in every epoch, as static masks require; only the order changes.
          cls_last: Whether [CLS] is the last token instead (XLNet).

        Raises:
          UserError: the options are incompatible, or the corpus is too small.
        """
        if pair not in PAIRS:
            raise UserError(f"unknown pair: got {pair!r}; {nearest(pair, PAIRS)}")
        self.pair, self.seed, self.resegment = pair, seed, resegment
        self.max_seq_length = max_seq_length
        self._corpus, self._word_starts = corpus, word_starts
        self._specials = SequenceTemplate(cls_id, sep_id, pad_id, cls_last)
        self._max_length = max_seq_length - self._specials.num_special_tokens(self.num_segments)
        self._check_specials()
        self._layout = Layout(corpus, separated=self.separates_documents and sep_id is not None)
        self._lone = self._lone_documents()
        self._locator = self._make_locator(short_seq_prob)
        self.num_examples = len(self._locator)
        self._check_size()

    def order(self, epoch: int, rank: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The numbers of the examples at positions of an epoch, in a random permutation."""
        return permute(rank, self.num_examples, self.seed, "order", epoch)

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds examples of an epoch by number.

        Args:
          epoch: 0 or more.
          example: Numbers in [0, num_examples), in any order.

        Returns:
          `input_ids`, `segment_ids` (int32 [n L]), `attention_mask` (bool [n L]), `example_id`
          (uint32 [n], the numbers), and, where they apply, `word_starts` (bool [n L]) and
          `pair_label` (int32 [n]).
        """
        example = np.asarray(example, np.int64)
        epoch = epoch if self.resegment else 0
        if self.pair == "next":
            table, parts, label = self._next_pairs(epoch, example)
        else:
            table, parts, label = self._contiguous(epoch, example)
        batch = assemble(table, parts, self._specials, self.max_seq_length, self._word_starts)
        batch["example_id"] = example.astype(np.uint32)
        if label is not None:
            batch["pair_label"] = label.astype(np.int32)
        return batch

    def _read(self, locations: TextLocations) -> tuple[SentenceTable, Segment]:
        """Reads the sentences at locations of the corpus and selects a segment for each."""
        # A sentence that is too long for an example is split into pieces that fill one exactly.
        piece = self._max_length // self.num_segments
        table = SentenceTable(self._corpus, self._layout, locations, self._max_length, piece)
        return table, segments.fill_windows(
            table, locations, self._max_length, at_least=self.num_segments
        )

    def _contiguous(
        self, epoch: int, example: Int[np.ndarray, " n"]
    ) -> tuple[SentenceTable, tuple[Segment, ...], Bool[np.ndarray, " n"] | None]:
        """Selects the segments and labels of examples of contiguous text."""
        table, text = self._read(self._locator.locate(epoch, example))
        if self.num_segments == 1:
            return table, (text,), None
        a, b = segments.split(table, text, uniforms(self.seed, "split", epoch, example))
        a, b = self._truncate(epoch, example, a, b)
        if self.pair == "none":
            return table, (a, b), None
        swapped = uniforms(self.seed, "swap", epoch, example) < 0.5
        return table, (b.where(swapped, a), a.where(swapped, b)), swapped

    def _next_pairs(
        self, epoch: int, example: Int[np.ndarray, " n"]
    ) -> tuple[SentenceTable, tuple[Segment, ...], Bool[np.ndarray, " n"]]:
        """Selects next-sentence pairs: half of the second segments are from another document."""
        is_random, partner, share = self._assign_partners(epoch, example)
        rows = np.flatnonzero(is_random)
        locations = self._locator.locate(epoch, example)
        table, text = self._read(locations + self._locator.locate(epoch, partner))
        a, b = segments.split(table, text, np.append(share, share[rows]))
        own, others = np.arange(len(example)), np.arange(len(example), len(text.row))
        a, b, random_b = a.take(own), b.take(own), b.take(others)
        capacity = locations.capacity - locations.skipped - a.length
        random_b = self._fill(table, random_b, capacity[rows])
        for values, random_values in zip(b, random_b, strict=True):
            values[rows] = random_values
        return table, self._truncate(epoch, example, a, b), is_random

    def _assign_partners(
        self, epoch: int, example: Int[np.ndarray, " n"]
    ) -> tuple[Bool[np.ndarray, " n"], Int[np.ndarray, " n"], np.ndarray]:
        """Returns whether each second segment is random, the examples of those, and the splits."""
        is_random, partner, share = assign_partners(epoch, example, self.num_examples, self.seed)
        document = self._locator.document(epoch, example)
        is_random = is_random | self._lone[document]
        example, document, partner = example[is_random], document[is_random], partner[is_random]
        invalid = partner < 0
        invalid |= self._locator.document(epoch, np.where(invalid, example, partner)) == document
        documents = self._locator.examples_of_document
        partner[invalid] = sample_other_documents(
            epoch, example[invalid], document[invalid], documents, self.seed
        )
        return is_random, partner, share

    def _truncate(
        self, epoch: int, example: Int[np.ndarray, " n"], a: Segment, b: Segment
    ) -> tuple[Segment, Segment]:
        shares = [uniforms(self.seed, f"truncate {part}", epoch, example) for part in "ab"]
        return segments.truncate(a, b, self._max_length, np.stack(shares))

    def preview(self, count: int = 3, epoch: int = 0) -> list[dict[str, Any]]:
        """The first examples of an epoch, for display.

        Returns:
          For each its `example_id`, its `input_ids` without padding, its `segment_ids` and, for
          labelled pairs, its `pair_label`.
        """
        batch = self.build(epoch, np.arange(min(count, self.num_examples)))
        length = batch["attention_mask"].sum(axis=1)
        rows = []
        for row, size in enumerate(length):
            shown = {"example_id": int(batch["example_id"][row])}
            for key in ("input_ids", "segment_ids"):
                shown[key] = batch[key][row, :size].tolist()
            if "pair_label" in batch:
                shown["pair_label"] = int(batch["pair_label"][row])
            rows.append(shown)
        return rows

    def _fill(
        self, table: SentenceTable, segment: Segment, capacity: Int[np.ndarray, " n"]
    ) -> Segment:
        """Extends the segments of other documents to the capacity that the first ones leave."""
        return segments.fill(table, segment, capacity)

    def _lone_documents(self) -> Bool[np.ndarray, " D"]:
        """Whether each document has a single sentence that is not split."""
        sizes = np.diff(self._layout.record_begin[self._layout.record_of_document])
        return (self._layout.document_sentences == 1) & (sizes <= self._max_length)

    def _make_locator(self, short_seq_prob: float | None) -> ShortenedWindows | SentencePairs:
        if short_seq_prob is None:
            short_seq_prob = self.default_short_seq_prob
        if not 0 <= short_seq_prob <= 1:
            raise UserError(f"short_seq_prob: got {short_seq_prob}, expected 0 to 1, such as 0.1")
        return ShortenedWindows(self._make_windows(), short_seq_prob)

    def _make_windows(self) -> DocumentWindows | StreamWindows:
        """Returns the windows of the format."""
        raise NotImplementedError

    def _check_specials(self) -> None:
        if self.num_segments == 2 and None in self._specials:
            raise UserError(
                f"{self.format}: got a tokenizer that lacks [CLS] or [SEP], expected both; use "
                "full-sentences or doc-sentences, or another tokenizer"
            )
        if self._max_length < self.num_segments:
            raise UserError(
                f"max_seq_length: got {self.max_seq_length}, which leaves {self._max_length} "
                f"tokens for text, expected >= {self.num_segments} for {self.format}; raise it"
            )
        if self.num_segments == 1 and self.pair != "none":
            raise UserError(
                f"pair: got {self.pair!r} with {self.format}, which has one segment, expected "
                "'none'; set it, or use segment-pair or sentence-pair"
            )

    def _check_size(self) -> None:
        if self.num_examples == 0:
            raise UserError(
                f"{self.format} with pair={self.pair!r} has no examples, since no document has two "
                "sentences; use another format or a larger corpus"
            )
        if self.pair == "next" and self._layout.num_documents < 2:
            raise UserError(
                f"pair='next' samples segments of other documents: {self._corpus.path} has one "
                f"document in its split {self._corpus.split}, expected >= 2; separate documents by "
                "blank lines, hold out more of them, or use pair='order' or 'none'"
            )


class SentenceFormat(Format):
    """Base class of the formats of sentences, which share their options.

    Attributes:
      examples_class: The examples of the format.
    """

    options = ("pair", "short_seq_prob", "static")
    examples_class: ClassVar[type[SentenceExamples]]

    @classmethod
    def examples(cls, spec: ExampleSpec) -> SentenceExamples:
        return cls.examples_class(
            spec.split,
            pair=spec.data["pair"],
            max_seq_length=spec.max_seq_length,
            short_seq_prob=spec.data["short_seq_prob"],
            seed=spec.seed,
            cls_id=spec.specials.cls_id,
            sep_id=spec.specials.sep_id,
            pad_id=spec.specials.pad_id,
            word_starts=spec.word_starts,
            resegment=spec.resegment,
            cls_last=spec.specials.cls_last,
        )
