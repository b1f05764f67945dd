"""Where a search is started: the Python API, the whole search, and what is sent to trackers.

May import: report, analysis, exploration, declare, files, space, base.
"""
