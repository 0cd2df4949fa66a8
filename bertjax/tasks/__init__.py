"""What is measured: one file a kind of task, each defining `Task`."""
