"""Serve the peer: python -m benchmarks.peer --url postgresql://... --port 8001 --secret ..."""

import argparse

import uvicorn

from benchmarks.peer.app import create_app


def main() -> None:
    """One process, with uvicorn's fastest loop and parser."""
    parser = argparse.ArgumentParser(prog="benchmarks.peer", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--secret", required=True)
    options = parser.parse_args()
    uvicorn.run(
        create_app(url=options.url, secret=options.secret.encode()),
        host="127.0.0.1",
        port=options.port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
