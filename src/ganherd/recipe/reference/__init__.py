"""What people look up about recipes: the packaged ones by task, every key with its meaning, and a JSON schema for editors."""
