"""Check users' nets before a run: refuse those that cannot be trained correctly; compare engines with plain PyTorch."""
