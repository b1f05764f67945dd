"""The nightly sweep: the same spaces every night, compared with accepted figures, and why they moved.

sweep.py reads a sweep file; observed.py writes a night's run folders, accepted ones are the baseline; night_run.py
compares; causes.py reads what `compare` finds; figures.py has errors and work; night_folder.py writes the reports.

May import: analysis, evidence, exploration, files, cost, space, base, declare.
"""
