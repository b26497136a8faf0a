"""Partitions, retention, archive."""
