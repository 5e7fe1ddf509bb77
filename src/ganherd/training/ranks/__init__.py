"""A run over several ranks: starting them, balancing them, and continuing without those that are lost."""
