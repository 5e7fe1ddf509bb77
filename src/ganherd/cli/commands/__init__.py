"""The commands, one file each: parse options, call, print. A command imports torch only when it needs it."""
