"""Our own files as typed values: YAML with its lines, where named files lie, hardware, stacks, frameworks, evidence;
Python files by their syntax tree (`python/`), shell scripts by bash's rules (`shell/`).

May import: cost, space, schedule, values, base.
"""
