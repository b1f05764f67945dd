"""Own training runs: logs read into typed readings, and what is learned from them about a site's software."""
