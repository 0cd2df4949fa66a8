"""Decoding for any model: sampling, greedy search, beam search."""
