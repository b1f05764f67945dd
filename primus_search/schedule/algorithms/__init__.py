"""One pipeline algorithm per file; see `primus_search.schedule.registry` for how a new one is added."""
