"""Compare finished runs as they are: scored alike, or by the scores that they have, on one page."""
