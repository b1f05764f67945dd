"""The nightly sweep: the same spaces every night, compared with accepted figures, and why they moved.

sweep.py reads a sweep file; night_run.py makes one night of it and compares; figures.py takes what is compared;
causes.py sets changed inputs back one at a time; baseline.py keeps accepted figures with their inputs; night_folder.py
writes the reports.

May import: analysis, evidence, exploration, declare, files, cost, space, values, base.
"""
