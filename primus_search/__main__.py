"""`python -m primus_search` is `primus-search`."""

from primus_search.cli import main

main()
