"""Launch files: one candidate in the words of the framework that will train it, and back.

Each format knows the keys its framework reads and nothing else. What it cannot say (a schedule it does not have, a
precision it cannot run) is never dropped: it is written into the file as a comment that names the knob, and reading
the file back gives the very same candidate.
"""

from primus_search.export.launch import FORMATS, Launch, open_launch, read_launch, write_launch

__all__ = ["FORMATS", "Launch", "open_launch", "read_launch", "write_launch"]
