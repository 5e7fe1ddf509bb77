"""`python -m ganherd` equals `ganherd`."""

from __future__ import annotations

from ganherd.cli.main import main

if __name__ == "__main__":
    main()
