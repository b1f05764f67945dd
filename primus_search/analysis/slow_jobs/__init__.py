"""Why a job is slower than projected: its log, patterns of its steps, and what a profiler saw of one."""
