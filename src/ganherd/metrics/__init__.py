"""Scores as functions of samples and features: FID, KID, precision and recall, modes, memorisation and others."""
