"""Upper bounds on rates and lower bounds on times, each with a certificate."""
