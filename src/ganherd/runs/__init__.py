"""Run folders: where everything lies, checkpoints and records. Reading them imports nothing of training."""
