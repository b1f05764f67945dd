"""`python -m primus_search.schedule` compiles the schedule kernels once, so that the first search need not wait."""

from primus_search.schedule import warm_up

warm_up()
