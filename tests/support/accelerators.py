"""Accelerators of all hardware files, read once for all tests that hold for any of them."""

from primus_search.files.hardware_files import load_hardware
from primus_search.files.search_path import FileKind, names

ACCELERATORS = {name: load_hardware(name).accelerator for name in names(FileKind.HARDWARE)}
