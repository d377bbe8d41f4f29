"""Schemas, regular expressions and grammars → what an answer may say next.

llguidance computes it; `guidance` is its only importer.
"""
