"""Whether the rows of a decode depend on how many tokens it has: what is known of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """Sizes of decodes whose rows and caches are equal, to the bit, to those of single tokens.

    Where all are, a text is one function of file, prompt, options and machine: not of the
    draft, the number of draft tokens or threads, or what was cached.

    largest_step: steps of up to this many tokens are; 1 if no other is. all_sizes: every
    decode is, prompts included. joined: so are those that several texts have a part in.
    reason: why not every one; empty if all are.
    """

    largest_step: int = 1
    all_sizes: bool = False
    joined: bool = False
    reason: str = "not asked for (exact=True)"

    def __str__(self) -> str:
        if self.all_sizes:
            return "all sizes"
        sizes = f"2 to {self.largest_step}" if self.largest_step > 1 else "none"
        return f"{sizes}: {self.reason}"
