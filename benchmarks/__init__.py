"""What the project measures of itself. Whatever compares two things does so in one run, as medians of interleaved repeats."""
