"""The `paidonce` command, which is also `python -m paidonce`."""

import gc
from typing import NoReturn


def main() -> NoReturn:
    """Run the command that was given."""
    # Importing makes hundreds of thousands of objects and drops few of them. Looking through them
    # as often as Python does it by itself takes a sixth of the start.
    gc.set_threshold(20_000)
    from paidonce import cli

    cli.main()


if __name__ == "__main__":
    main()
