"""A rank of `python -m ganherd.comm`; the chosen one is killed before it meets the others."""

import os
import signal
import sys

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

if __name__ == "__main__":
    if next(os.environ[name] for name in _RANKS if name in os.environ) == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)

    from ganherd.comm.__main__ import main  # the dead rank has loaded nothing

    main()
