"""Names of models: presets, aliases, paths and files of the hub, and where their files are."""
