"""What the steps of large schedules have in common, without their sends one by one."""
