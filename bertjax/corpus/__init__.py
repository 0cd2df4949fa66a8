"""Corpora: read text, encode it as records of token ids, write and read shards."""
