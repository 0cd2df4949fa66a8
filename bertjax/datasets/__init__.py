"""The examples of tasks, on the host: the folder is the table, see `bertjax/catalog.py`."""
