"""API keys of operators."""
