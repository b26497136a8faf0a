"""Stored events: search, audit trail, evidence."""
