"""Kernel and collective laws: seconds of one operation on one device or group."""
