"""First letter of a text, as a classification task."""
