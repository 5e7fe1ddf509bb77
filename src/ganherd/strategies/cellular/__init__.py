"""Cellular coevolution: cells on a graph compete with their neighbours."""
