"""Whole sentences of one document (Liu et al. 2019, section 4.2)."""

import numpy as np

from bertjax.data.examples import SentenceExamples, SentenceFormat
from bertjax.data.windows import DocumentWindows


class Examples(SentenceExamples):
    """Whole sentences of one document."""

    format = "doc-sentences"

    def _make_windows(self) -> DocumentWindows:
        every = np.ones(self._layout.num_documents, bool)
        return DocumentWindows(self._layout, self._max_length, self.seed, every)


class Format(SentenceFormat):
    examples_class = Examples
