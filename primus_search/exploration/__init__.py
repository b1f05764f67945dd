"""Design-space exploration: a funnel over the whole space, on one core or a cluster, and the run folder it leaves.

May import: measure, declare, files, cost, space, schedule, values, base.
"""
