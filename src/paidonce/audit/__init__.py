"""The audit log: what operators did, and what happened to an event."""
