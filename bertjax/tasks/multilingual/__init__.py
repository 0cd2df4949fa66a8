"""Cross-lingual classification, scored by language: XNLI and MLDoc."""
