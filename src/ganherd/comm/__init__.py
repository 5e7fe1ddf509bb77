"""Communication between the ranks of a job, and the placement of members on ranks."""
