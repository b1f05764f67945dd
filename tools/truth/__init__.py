"""Ground truth of our own: small models really trained on this machine, against what is projected of them."""
