"""Run `ganherd sweep`: train many settings of one recipe as one computation, stop the worse ones early, rank all."""
