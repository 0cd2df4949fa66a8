"""Whole sentences of one document (Liu et al. 2019, section 4.2)."""

from bertjax.data.examples import SentenceFormat as Format

__all__ = ["Format"]
