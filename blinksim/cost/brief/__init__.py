"""Times of schedules that are not written out send by send."""
