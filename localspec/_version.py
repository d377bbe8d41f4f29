"""The version, where every module may have it from: nothing lies below."""

__version__ = "0.1.0"
