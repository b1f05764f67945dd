"""Searches and runs from Python and notebooks."""
