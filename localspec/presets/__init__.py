"""Presets, and their files: named, downloaded, verified, removed."""
