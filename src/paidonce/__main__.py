"""The `paidonce` command, which is also `python -m paidonce`."""

import gc
from typing import NoReturn


def main() -> NoReturn:
    """Run the command."""
    # Imports create hundreds of thousands of objects and free few of them. With the default
    # threshold, garbage collection takes a sixth of the start.
    gc.set_threshold(20_000)
    from paidonce import cli

    cli.main()


if __name__ == "__main__":
    main()
