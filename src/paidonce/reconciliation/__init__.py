"""Compares the gateway's statements with the payments stored here, and repairs differences."""
