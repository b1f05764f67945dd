"""Isolated processes and groups of ranks in which measurements run."""
