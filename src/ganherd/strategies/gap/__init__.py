"""GAP: members swap discriminators or generators."""
