"""Measured runs: published tables, logs, validation of projections, learned stacks, calibration."""
