"""Fit of the shipped stack and device numbers to training runs, with held-out errors."""
