"""The `ganherd` command, with trainings that end with the mixture: `brief_command.py train RECIPE …`."""

from __future__ import annotations

import pytest
import tiny_runs

from ganherd.cli.main import main

if __name__ == "__main__":
    tiny_runs.skip_products(pytest.MonkeyPatch())
    main()
