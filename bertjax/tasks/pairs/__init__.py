"""Embedding of texts: an encoder is trained on pairs of texts, with or without scores."""
