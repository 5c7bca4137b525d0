"""The wires that a load can go over."""
