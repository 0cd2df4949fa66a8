"""Exchange with Hugging Face: import and export of models and tokenizers."""
