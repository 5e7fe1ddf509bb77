"""The communicators: for one process, for MPI and for torch.distributed; and how a job is started."""
