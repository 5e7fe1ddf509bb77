"""`ganherd bench`: what fusing, exchanges and ranks cost on this machine."""
