"""The run folder: its files, its journal, and reading it back."""
