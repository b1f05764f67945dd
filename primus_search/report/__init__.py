"""What people read of a search: terminal tables, pages, explanations. Text of values that others computed.

May import: analysis, exploration, launch, cost, space, schedule, values, base.
"""
