"""Two segments, each of whole sentences: the input of BERT (Liu et al. 2019, section 4.2)."""

from bertjax.data.examples import SentenceExamples, SentenceFormat
from bertjax.data.windows import DocumentWindows


class Examples(SentenceExamples):
    """Two segments of whole sentences; BERT shortens a tenth of its examples."""

    format = "segment-pair"
    num_segments = 2
    default_short_seq_prob = 0.1

    def _make_windows(self) -> DocumentWindows:
        included = ~self._lone | (self.pair == "next")
        return DocumentWindows(self._layout, self._max_length, self.seed, included)


class Format(SentenceFormat):
    examples_class = Examples
