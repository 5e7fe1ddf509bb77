"""Monitor the health of members: cheap scores, alarms, repairs, and members that have converged."""
