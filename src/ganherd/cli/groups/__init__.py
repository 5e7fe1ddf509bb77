"""Groups of commands, one file each: `ganherd data list`, `ganherd runs tag` and others."""
