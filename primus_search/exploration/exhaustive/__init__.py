"""Exhaustive search: tasks as ranges of the space, bounds, and the shortlist of the best rows."""
