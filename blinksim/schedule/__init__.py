"""What is sent where, when: representation, loads and proof."""
