"""Models of several families, which think and speak: templates, prompts and scripts."""

from __future__ import annotations

import dataclasses

from gguf_maker import write_scripted_model


@dataclasses.dataclass(frozen=True)
class Model:
    """script: as for `write_scripted_model`. rendered: the second prompt, but its begin."""

    template: str
    rendered: str
    script: dict[str, str]
    control: tuple[str, ...] = ()
    user_defined: tuple[str, ...] = ()


def template(user: str, assistant: str, begin: str) -> str:
    """Texts in which X is the message's content."""
    user, assistant = (text.replace("X", "{{ m.content }}") for text in (user, assistant))
    return (
        f"{{% for m in messages %}}{{% if m.role == 'user' %}}{user}{{% else %}}{assistant}"
        f"{{% endif %}}{{% endfor %}}{begin}"
    )


MODELS = {
    "gpt-oss": Model(
        template(
            "<|start|>user<|message|>X<|end|>",
            "<|start|>assistant<|channel|>final<|message|>X<|end|>",
            "<|start|>assistant",
        ),
        "<|start|>user<|message|>hi<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hello.<|end|>"
        "<|start|>user<|message|>and<|end|><|start|>assistant",
        {
            "t": "<|channel|>",
            "<|channel|>": "analysis",
            "analysis": "<|message|>",
            "<|message|>": "Hm.",
            "Hm.": "<|end|>",
            "<|end|>": "<|start|>",
            "<|start|>": "assistant",
            "assistant": "<|channel|>final<|message|>",  # in letters: a token has one successor
            "<|channel|>final<|message|>": "Hello.",
            "Hello.": "<|return|>",
        },
        # libllama makes all but the last user-defined.
        control=(
            "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|call|>",
            "<|return|>",
        ),
    ),
    "Gemma 4": Model(
        template("<|turn>user\nX<turn|>\n", "<|turn>model\nX<turn|>\n", "<|turn>model\n")
        + "{# <|channel>thought<channel|> #}",
        "<|turn>user\nhi<turn|>\n<|turn>model\nHello.<turn|>\n<|turn>user\nand<turn|>\n"
        "<|turn>model\n",
        {
            "<0x0A>": "<|channel>",
            "<|channel>": "thought",
            "thought": "Hm.",
            "Hm.": "<channel|>",
            "<channel|>": "Hello.",
            "Hello.": "<turn|>",
        },
        control=("<|turn>", "<turn|>"),
        user_defined=("<|channel>", "<channel|>"),
    ),
    "Mistral": Model(
        # Its own template refuses an empty answer, too.
        template(
            "[INST]X[/INST]",
            "{% if m.content == '' %}{{ raise_exception('empty') }}{% endif %}X</s>",
            "",
        ),
        "[INST]hi[/INST]Hello.</s>[INST]and[/INST]",
        {
            "[/INST]": "[THINK]",
            "[THINK]": "Hm.",
            "Hm.": "[/THINK]",
            "[/THINK]": "Hello.",
        },
        control=("[INST]", "[/INST]", "[THINK]", "[/THINK]"),
    ),
}  # fmt: skip


def write_models(folder):
    """The models' files, by name."""
    return {
        name: write_scripted_model(
            folder / f"{name}.gguf",
            model.script,
            control=model.control,
            user_defined=model.user_defined,
        )
        for name, model in MODELS.items()
    }
