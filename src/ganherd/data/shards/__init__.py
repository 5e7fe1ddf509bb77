"""Data sets that were prepared once and are read row by row: `ganherd data prepare`."""
