"""What runs say of a site's software: hypotheses, what each projects, errors that runs share, and the posterior."""
