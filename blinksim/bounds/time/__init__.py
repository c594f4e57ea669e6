"""Lower bounds on time for one size: latency, overhead and bandwidth together, each with a certificate."""
