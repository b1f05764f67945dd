"""Measured runs of tables and traces, and how well projections meet them.

May import: learning and below.
"""
