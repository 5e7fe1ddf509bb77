"""Strategies: which members meet, and what they exchange."""
