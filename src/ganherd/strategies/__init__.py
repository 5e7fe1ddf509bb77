"""Which data a member sees, who meets whom, and what happens between members."""
