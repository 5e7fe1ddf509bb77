"""Cellular coevolution (Lipizzaner, Mustangs): cells on a graph compete with their neighbours."""
