"""What every room stands on: errors, units, lazy imports, cores, guards. No knowledge of training.

May import: nothing.
"""
