"""For how many tokens a model's context is opened."""

from __future__ import annotations

from localspec.errors import OptionError

DEFAULT_CONTEXT_LENGTH = 8192


def context_to_open(wanted: int | None, trained: int, name: str) -> int:
    """The tokens to open a model's context for; wanted None leaves the choice to us.

    trained: tokens that the model was trained for. Raises OptionError beyond them.
    """
    if wanted is not None and wanted > trained:
        raise OptionError(
            f"a context of {wanted} tokens is asked for; {name} was trained for {trained}",
            f"Choose context_length={trained} or less.",
        )
    return wanted or min(trained, DEFAULT_CONTEXT_LENGTH)
