"""`python -m paidonce` is the `paidonce` command."""

from paidonce.cli import main

main()
