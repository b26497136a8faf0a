"""The wallet, the payments that are made out of it, and what is shown of them (section 9)."""
