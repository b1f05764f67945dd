"""The device a measurement runs on: facts, clocks, health, kernel sweeps, timing."""
