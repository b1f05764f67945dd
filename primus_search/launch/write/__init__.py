"""A framework's files: one writer a framework, from a candidate and its job."""
