"""Construction and improvement of pipeline orders within a memory limit."""
