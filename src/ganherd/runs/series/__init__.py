"""What a run records over its steps, read in parts: numbers by byte offset or step, events by byte offset, sprites by step."""
