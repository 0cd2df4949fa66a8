"""Late interaction (ColBERT): queries and documents are compared token by token."""
