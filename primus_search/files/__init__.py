"""Our own files as typed values: a YAML text with its lines, hardware, stacks, frameworks, evidence, and where
named files lie.

May import: cost, values, base.
"""
