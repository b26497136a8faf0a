"""Events that wait: the queue table, the worker, claims."""
