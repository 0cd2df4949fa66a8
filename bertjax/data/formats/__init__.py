"""Example formats: `config.data.format` names a file, which defines `Format` (`data/format.py`)."""
