"""Pairs of GGUF files that cost what real ones cost and agree as often as one asks.

A transformer whose attention-output and FFN-down matrices are zero hands its token embedding
straight to the head, whatever the other matrices hold. So the next token depends on the last
one only, by a distribution that can be chosen, while every decode does the work of the real
shape. Recurrent layers are silenced likewise, and the layer of a head (MTP), which sees the
target's row as well: see weights.
"""
