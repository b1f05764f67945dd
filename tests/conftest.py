"""Property tests draw the same examples in continuous integration every time; on a developer's machine, new ones.

A busy machine is no fault of a strategy: how fast examples are drawn is not checked.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "default")
