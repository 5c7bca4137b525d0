"""Contract fake; see the package above."""
