"""Measure for `ganherd bench` what fused training, exchanges and starting cost.

Further benchmarks are in benchmarks/.
"""
