"""Reranking: a cross-encoder reads a query and a passage as one sequence, and scores the pair."""
