"""Runs that start from other runs: fine-tuning, phases, growing, retraining, and runs in parts."""
