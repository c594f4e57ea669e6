"""What comes with blinksim, by name: machines and ready schedules."""
