"""`python forked.py 5 program.py …`: ranks of torch.distributed forked from one process, without torchrun: born in milliseconds."""

from __future__ import annotations

import os
import runpy
import socket
import sys
import traceback

import numpy  # noqa: F401
import torch.distributed  # noqa: F401  (what takes seconds to import, the children are born with)


def main(ranks: int, words: list[str]) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), **where)
            sys.argv = words
            try:
                runpy.run_path(words[0], run_name="__main__")
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
