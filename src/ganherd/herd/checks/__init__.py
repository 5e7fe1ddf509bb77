"""Check a user's nets before a run: refuse nets that cannot be trained correctly, and compare each engine with plain PyTorch."""
