"""Communicators: one process, MPI, and torch.distributed; and which of them started this process."""
