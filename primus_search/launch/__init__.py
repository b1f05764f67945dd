"""Launch files: one candidate in the words of the framework that will train it, and experiments read back.

Which knobs a framework has and under which keys is in its contract (`framework.Framework`); the modules here write the
files around it. A candidate that the framework cannot start is refused: nothing is left to a comment.
"""

from primus_search.launch.write.job import Inexpressible
from primus_search.launch.write.launch_files import FORMATS, LaunchFiles, launch_files

__all__ = ["FORMATS", "Inexpressible", "LaunchFiles", "launch_files"]
