"""Reference numbers that engines and checkpoints are held against, and the scripts that made them."""
