"""Whole sentences, a separator between documents (Liu et al. 2019, section 4.2)."""

from bertjax.data.examples import SentenceExamples, SentenceFormat
from bertjax.data.windows import StreamWindows


class Examples(SentenceExamples):
    """Whole sentences from one or more documents."""

    format = "full-sentences"
    separates_documents = True

    def _make_windows(self) -> StreamWindows:
        return StreamWindows(self._layout, self._max_length, self.seed)


class Format(SentenceFormat):
    examples_class = Examples
