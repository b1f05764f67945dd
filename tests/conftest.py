"""Property tests draw the same examples in continuous integration every time; on a developer's machine, new ones."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
