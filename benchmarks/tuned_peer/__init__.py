"""The peer, tuned: SQLAlchemy Core on a connection, every statement built at import.

Everything around the handler is the peer's own: tables, application, pool, log, metrics, uvicorn.
"""
