"""One run from its first round to its last, and many of them side by side."""
