"""Multiple-choice questions: RACE and SWAG."""
