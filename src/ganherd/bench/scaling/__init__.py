"""The scaling benchmark: more ranks, and a model of larger jobs."""
