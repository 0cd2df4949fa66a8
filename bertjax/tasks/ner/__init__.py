"""Named entity recognition (NER) as token classification."""
