"""Calibration of the machine itself as a cluster node (`hardware: host`)."""
