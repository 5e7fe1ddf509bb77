"""The page: a read-only server for runs, their live numbers and pictures, and samples of their mixtures."""
