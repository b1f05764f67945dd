"""The version of this release; pyproject.toml, run folders and messages take it from here."""

__version__ = "0.2.0"
