"""What `explain`, `doctor` and `models` say of a pair, this machine, and its presets."""
