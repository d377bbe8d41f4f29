"""The loop, its rules and its proposers; it sees no text, no path and no clock."""
