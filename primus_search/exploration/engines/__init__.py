"""Engines that run tasks: local processes, or a Ray cluster."""
