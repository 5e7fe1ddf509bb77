"""The commands, one file each: parse, call, print. No logic here, and no torch until a command needs it."""
