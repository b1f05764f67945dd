"""Pages of docs/ that are generated from the code: `python -m tools.docs` writes them."""
