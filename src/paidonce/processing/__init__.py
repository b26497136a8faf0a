"""Turns a batch of events into rows: load, decide, write."""
