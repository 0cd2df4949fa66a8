"""Feature-based named entity recognition: a BiLSTM on a frozen encoder."""
