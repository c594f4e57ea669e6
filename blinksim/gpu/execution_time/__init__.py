"""Time of programs: every thread block as the kernel runs it, and the ports of its GPU to the switch."""
