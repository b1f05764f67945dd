"""The frameworks' own checks, run in this process on settings: no GPU, one import, thousands of jobs."""
