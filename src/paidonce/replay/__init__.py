"""Processes stored events again: one, or all that match a filter."""
