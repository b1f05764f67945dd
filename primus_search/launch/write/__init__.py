"""What a framework's files are told: one writer a framework, from a candidate and its job."""
