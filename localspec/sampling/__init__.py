"""What shapes a distribution, and the distribution itself."""
