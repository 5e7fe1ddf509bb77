"""Define groups of commands, in one file each: `ganherd data list`, `ganherd runs tag` and others."""
