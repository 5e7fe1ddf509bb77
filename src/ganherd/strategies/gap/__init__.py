"""GAP: members swap discriminators or generators in random pairs."""
