"""What long-running processes are made of: services, leaders, wake-ups, backoff, processes."""
