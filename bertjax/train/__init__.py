"""The trainer, independent of models and tasks."""
