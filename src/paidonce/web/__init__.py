"""HTTP: the hot path for deliveries, and the operators' API beside it."""
