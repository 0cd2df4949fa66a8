"""Tokenizers: released vocabularies and trained ones."""
