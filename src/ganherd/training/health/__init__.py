"""How members are: cheap scores, alarms, repairs, and members that have converged."""
