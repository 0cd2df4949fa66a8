"""Multiple-choice questions: RACE, SWAG and COPA."""
