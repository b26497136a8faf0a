"""Orders: what a merchant expects to be paid for."""
