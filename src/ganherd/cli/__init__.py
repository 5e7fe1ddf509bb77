"""Define the commands of `ganherd`, and turn errors into messages and exit codes."""
