"""Frozen types that the rooms exchange: machine, model, knobs, candidates, layout, workload, job, measured run.

May import: base.
"""
