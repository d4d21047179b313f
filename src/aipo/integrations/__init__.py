"""AIPO in other libraries, and theirs in AIPO; each needs an extra of its own."""
