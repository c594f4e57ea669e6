"""What builds schedules whose switches multicast and reduce."""
