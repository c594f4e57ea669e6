"""Times by constants that were measured, and where measured times lie."""
