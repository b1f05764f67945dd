"""Own training runs: logs read into typed readings, what is learned from them about a site's software, and what to
run next.

May import: exploration, launch, declare, models, files, cost, values, base.
"""
