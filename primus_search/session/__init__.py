"""Where a search is started: the Python API, the whole search, and what is sent to trackers.

May import: every room but cli.
"""
