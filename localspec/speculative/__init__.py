"""The loop, its rules and its proposers. It sees no text, no path and no clock."""
