"""Intervals, resampling, means over seeds, and the rule that decides a comparison."""
