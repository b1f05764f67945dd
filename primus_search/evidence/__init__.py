"""Measured runs of published tables, and how well projections meet them (`validate`).

May import: learning, launch, declare, files, cost, schedule, values, base.
"""
