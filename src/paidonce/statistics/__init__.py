"""How many deliveries were received, and their results."""
