"""Serve the peer: python -m benchmarks.peer --url postgresql://... --port 8001 --secret ..."""

from benchmarks.peer.handler import open_handler
from benchmarks.peer.server import serve

if __name__ == "__main__":
    serve(open_handler)
