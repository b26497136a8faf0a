"""Takes changed settings over while the service runs: all processes, or none."""
