"""Exchange with Hugging Face."""
