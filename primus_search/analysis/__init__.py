"""What a finished run says of its candidates: its answer in words, explanations, comparisons, what else could be tried.

May import: learning, exploration, launch, declare, files, cost, space, schedule, values, base.
"""
