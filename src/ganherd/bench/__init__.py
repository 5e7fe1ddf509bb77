"""`ganherd bench`: what fusing, exchanges and ranks cost on a machine. What it compares with is in benchmarks/ganherd_rivals."""
