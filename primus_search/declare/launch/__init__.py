"""Launch settings, written or printed, become candidates by the contract of their framework; `contract` writes too."""
