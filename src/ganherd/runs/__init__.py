"""Run folders: their paths, checkpoints and records. Reading them imports nothing of training."""
