"""What a run shows while it trains: previews, validation, sums for the records, trackers."""
