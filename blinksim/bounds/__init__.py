"""The best rate that is possible, with a certificate."""
