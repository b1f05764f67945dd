"""What a job runs on: accelerator, network, cluster of both, software stack, and what a framework can express."""
