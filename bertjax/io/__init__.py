"""Files, buckets and file formats."""
