"""Named entity recognition on features of a frozen encoder."""
