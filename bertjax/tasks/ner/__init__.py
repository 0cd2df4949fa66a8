"""Named entity recognition on tagged words."""
