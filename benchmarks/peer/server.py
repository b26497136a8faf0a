"""The process around the application: its command line and its uvicorn."""

import argparse

import uvicorn

from benchmarks.peer.app import OpenHandler, create_app


def serve(open_handler: OpenHandler) -> None:
    """One process, with uvicorn's fastest loop and parser."""
    parser = argparse.ArgumentParser(description="Serve a hand-written handler.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--secret", required=True)
    options = parser.parse_args()
    uvicorn.run(
        create_app(open_handler, url=options.url, secret=options.secret.encode()),
        host="127.0.0.1",
        port=options.port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )
