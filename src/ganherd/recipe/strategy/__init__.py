"""Settings of the strategies: which members meet, when, and what they exchange."""
