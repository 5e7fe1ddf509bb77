"""Train from other runs or in pieces: fine-tune, train in two phases, grow, retrain, and join runs in parts."""
