"""Two single sentences (Liu et al. 2019, section 4.2)."""

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data import segments
from bertjax.data.examples import SentenceExamples, SentenceFormat
from bertjax.data.layout import TextLocations
from bertjax.data.segments import Segment
from bertjax.data.sentence_table import SentenceTable
from bertjax.data.windows import SentencePairs
from bertjax.errors import UserError


class Examples(SentenceExamples):
    """Two neighbouring sentences, or a sentence and one of another document."""

    format = "sentence-pair"
    num_segments = 2

    def _make_locator(self, short_seq_prob: float | None) -> SentencePairs:
        if short_seq_prob:
            raise UserError(
                f"short_seq_prob: got {short_seq_prob} with sentence-pair, whose segments are "
                "single sentences, expected 0; omit it"
            )
        lone = self.pair == "next"
        return SentencePairs(self._layout, self._max_length, self.seed, lone_sentences=lone)

    def _lone_documents(self) -> Bool[np.ndarray, " D"]:
        return self._layout.document_sentences == 1  # sentences are truncated, not split

    def _read(self, locations: TextLocations) -> tuple[SentenceTable, Segment]:
        table = SentenceTable(self._corpus, self._layout, locations, 0, 0)
        origin = self._locator.record_begin[locations.first_record]
        return table, segments.pair_neighbours(table, locations, origin)

    def _fill(
        self, table: SentenceTable, segment: Segment, capacity: Int[np.ndarray, " n"]
    ) -> Segment:
        return segment


class Format(SentenceFormat):
    examples_class = Examples
