"""Check a user's nets before a run: what cannot be trained correctly is refused, and each engine is compared with plain PyTorch."""
