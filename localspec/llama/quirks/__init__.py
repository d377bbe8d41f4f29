"""Workarounds for faults and gaps of other libraries; each says when it can be removed.

None of them changes an answer. To find out, remove one and run the tests with the libraries
that it names.
"""
