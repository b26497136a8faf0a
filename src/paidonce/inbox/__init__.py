"""Receives deliveries: from the socket to the batch that is committed."""
