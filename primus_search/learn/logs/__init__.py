"""One log format per file; see `primus_search.learn.readers` for how a new one is added."""
