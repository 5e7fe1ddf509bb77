"""Python imports this module when it starts, in every process whose PYTHONPATH holds this folder."""

import sandbox_hook

sandbox_hook.install()
