"""What documents and published tables say: models that reproduce one of them, and what was measured."""
