"""Ranks of a job: which members each has, and what carries members between them."""
