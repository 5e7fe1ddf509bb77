"""The commands, a file for each kind: parse, call, print. No logic here, and no torch until a command needs it."""
