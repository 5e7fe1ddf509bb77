"""Programs of tests are forked with their imports done, unless their environment needs a new interpreter."""

from __future__ import annotations

import subprocess

import pytest
import warm_python
from processes import environment


@pytest.mark.parametrize(
    ("changes", "is_forked"),
    [
        ({}, True),
        ({"KMP_INIT_AT_FORK": "FALSE", "KMP_DUPLICATE_LIB_OK": "True"}, True),  # as after an import of scikit-learn
        ({"OMP_WAIT_POLICY": "PASSIVE"}, True),  # as after a command in the process of the test
        ({"MKL_NUM_THREADS": "2"}, False),
    ],
)
def test_a_program_is_forked_unless_its_environment_is_read_at_the_start(
    changes: dict[str, str], is_forked: bool
) -> None:
    words = [warm_python.python(), "-c", "import sys; print('torch' in sys.modules)"]
    done = subprocess.run(words, env=environment(**changes), capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{is_forked}\n", done
