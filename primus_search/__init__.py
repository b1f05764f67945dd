"""Choose the training configuration of a large model before the cluster is paid for."""

__version__ = "0.1.0"
