"""Python files read without running them: modules, the values of their names, what their calls are given."""
