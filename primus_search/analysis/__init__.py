"""What a finished run says of its candidates: explanations, comparisons, what else could be tried."""
