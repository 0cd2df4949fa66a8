"""The trainer: knows no model and no task."""
