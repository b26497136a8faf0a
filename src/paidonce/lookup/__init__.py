"""Events whose meaning must be asked from the gateway."""
