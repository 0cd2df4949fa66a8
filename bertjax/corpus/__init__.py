"""Corpora: read text, encode it as records, write and read shards."""
