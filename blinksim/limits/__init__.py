"""What work may take: about how long, told before it begins, and when it ends."""
