"""`ganherd bench`: what fusing, exchanges and ranks cost on a machine. Rivals, limits and scaling are in benchmarks/."""
