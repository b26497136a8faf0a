"""Users and their subscriptions."""
