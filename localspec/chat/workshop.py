"""Makes the prompts for one model, in the process that has the model."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Sequence

from localspec.chat.prompt import PromptMaker
from localspec.chat.template import template_source
from localspec.errors import OptionError, at_most
from localspec.pictures.picture import Vision
from localspec.vocabulary import Vocabulary

_MOST_IDS = 1 << 24  # token ids in a list; more than any context holds
_MOST_MAKERS = 8  # makers of prompts that are cached, so that each template is compiled once


class PromptWorkshop:
    """What prompts for one model are made with: its vocabulary, templates and projector.

    One thread makes all prompts, one after another.

    Args:
        vocabulary: The model's vocabulary.
        chat_template: The Jinja source in the model's file; None if it has none.
        tool_template: The file's second source, for questions with tools; None if it has none.
        vision: The projector, which makes tokens of pictures; None if the model does not see.
        context_length: The limit for a prompt and its answer together, in tokens.
        trained_context_length: The longest context that the model was trained for, in tokens.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        chat_template: str | None,
        tool_template: str | None,
        vision: Vision | None,
        context_length: int,
        trained_context_length: int,
    ) -> None:
        self.vocabulary = vocabulary
        self.context_length = context_length
        self.trained_context_length = trained_context_length
        self._chat_template = chat_template
        self._tool_template = tool_template
        self._vision = vision
        self._makers: OrderedDict[tuple[str, str | None, bool], PromptMaker] = OrderedDict()

    def maker(self, template: str | None, *, think: bool) -> PromptMaker:
        """The maker of prompts by a chat template. The most recently used makers are cached.

        Args:
            template: The name of a built-in template, or a Jinja source; None for the model's
                own.
            think: False asks for answers without thoughts.

        Raises:
            TemplateError: The template is missing, broken, or has no switch for thoughts.
        """
        source = template_source(template, self._chat_template)
        tool_source = None
        if template is None:
            tool_source = self._tool_template
        key = (source, tool_source, think)
        maker = self._makers.pop(key, None)
        if maker is None:
            maker = PromptMaker(
                self.vocabulary,
                source,
                think=think,
                tool_source=tool_source,
                vision=self._vision,
            )
        self._makers[key] = maker
        while len(self._makers) > _MOST_MAKERS:
            self._makers.popitem(last=False)
        return maker


def known_ids(tokens: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Token ids as a list of ints. Raises OptionError for an id outside the vocabulary."""
    ids = token_ids(tokens)
    if ids:
        vocabulary.detokenize([min(ids), max(ids)])  # raises for ids outside the vocabulary
    return ids


def token_ids(tokens: Sequence[int]) -> list[int]:
    """Token ids, such as NumPy's numbers, as a list of ints.

    Raises OptionError for anything but whole numbers, and for more than _MOST_IDS.
    """
    try:
        if isinstance(tokens, bytes):
            raise TypeError("bytes")
        bounded = at_most(_MOST_IDS, tokens, "token ids")
        return [operator.index(token) for token in bounded]
    except TypeError as error:
        raise OptionError(
            f"neither text nor token ids: {error}",
            "Give a str or ints.",
        ) from error
