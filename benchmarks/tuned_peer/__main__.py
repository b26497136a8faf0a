"""Serve the tuned peer: python -m benchmarks.tuned_peer, with the options of benchmarks.peer."""

from benchmarks.peer.server import serve
from benchmarks.tuned_peer.handler import open_handler

if __name__ == "__main__":
    serve(open_handler)
