"""Programs that run in a peer's own environment. They import nothing of ours but the generated protocol and the golden file."""
