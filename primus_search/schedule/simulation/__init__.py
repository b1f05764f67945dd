"""Exact times of pipeline orders: one order, or one order at many rows of costs."""
