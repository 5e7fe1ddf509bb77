"""`ganherd sweep`: many settings of one recipe, trained as one computation, halved step by step, and ranked."""
