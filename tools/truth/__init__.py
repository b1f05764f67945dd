"""Ground truth of our own: small models really trained on this machine."""
