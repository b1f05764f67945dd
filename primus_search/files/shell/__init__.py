"""Shell scripts read without running them: words, variables, tests and loops."""
