"""What a framework's file says, read and written by one contract.

`contract` translates between keys and knobs; `read/` makes candidates of files, `write/` makes files of candidates.
A candidate that a framework cannot start is refused: nothing is left to a comment.

May import: declare, models, files, space, schedule, values, base.
"""
