"""Pictures in messages: where they stand in the prompt, and what blind models get."""

from __future__ import annotations

import base64
import itertools
import re

import pytest
from PIL import Image

from localspec import OptionError, Picture, TemplateError
from localspec.chat.chat import Chat
from localspec.chat.messages import checked_messages, merged_messages
from localspec.chat.prompt import PromptMaker
from localspec.chat.shown import PICTURE_NOTE
from localspec.chat.template import BUILT_IN
from localspec.streaming.cancellation import never
from localspec.tools.tool import ToolUse
from prompts import NoModels

RED = Picture(2, 1, b"\xff\0\0" * 2)
BLUE = Picture(1, 2, b"\0\0\xff" * 2)
WORDS = "What is this?"
CHATML = BUILT_IN["chatml"]
# The part of the templates of some models that see.
PARTS = (
    "{% for m in messages %}{{ m['role'] }}:{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}\n{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if m['content'] is string %}"
    "{{ m['content'] | trim }}{% else %}{% for item in m['content'] %}"
    "{% if item['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)


class Eyes:
    """A projector without weights: an id around each picture, and three cells of its own."""

    def __init__(self):
        self.seen = []

    def cells(self, picture):
        self.seen.append(picture)
        first = -1 - (int.from_bytes(picture.digest[:6], "big") << 20)
        return [5, first, first - 1, first - 2, 6]


@pytest.fixture(scope="module")
def prompt_of(demo_vocabulary):
    """The prompt of messages, by a template, and the pictures that were looked at."""

    def make(messages, template=CHATML, vision=None, **how):
        maker = PromptMaker(demo_vocabulary, template, think=True, vision=vision)
        return maker.prompt(checked_messages(messages), ToolUse(), never, **how)

    return make


@pytest.fixture
def in_words(demo_vocabulary):
    """Tokens as text, in which each picture is its width in brackets."""

    def say(tokens):
        parts = []
        for is_cell, group in itertools.groupby(tokens, lambda token: token < 0):
            several = list(group)
            parts.append(
                f"[{len(several)}]"
                if is_cell
                else demo_vocabulary.detokenize(several, special=True)
            )
        return "".join(parts)

    return say


def test_what_the_system_says_stands_before_a_question_s_pictures(prompt_of, in_words):
    """Where the template knows no system: with the words of the question."""
    silent = CHATML.replace(
        "in messages", "in messages if message.role in ('user', 'assistant')"
    )
    system = {"role": "system", "content": "Be brief."}
    asked = user({"type": "image", "image": RED}, text(WORDS))
    prompt = prompt_of([system, *asked], silent, Eyes())
    shown = in_words(prompt.tokens)
    assert re.search(rf"user\nBe brief\.\n\n.*\[3\].*{re.escape(WORDS)}", shown)
    assert [each.digest for each in prompt.pictures] == [RED.digest]


def around(demo_vocabulary):
    return [demo_vocabulary.detokenize([token], special=True) for token in (5, 6)]


def user(*parts):
    return [{"role": "user", "content": list(parts)}]


def text(said):
    return {"type": "text", "text": said}


def encoded(picture):
    return base64.b64encode(picture.png()).decode()


def data_url(picture, kind="image/png"):
    return f"data:{kind};base64,{encoded(picture)}"


def openai(picture):
    return {"type": "image_url", "image_url": {"url": data_url(picture)}}


FORMS = {
    "openai": openai,
    "flat": lambda picture: {"type": "image_url", "image_url": data_url(picture)},
    "responses": lambda picture: {
        "type": "input_image",
        "detail": "auto",
        "image_url": data_url(picture, "image/png;charset=utf-8"),
    },
    "anthropic": lambda picture: {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": encoded(picture)},
    },
    "picture": lambda picture: {"type": "image", "image": picture},
    "bytes": lambda picture: {"type": "image", "image": picture.png()},
    "pillow": lambda picture: {
        "type": "image",
        "image": Image.frombytes("RGB", (picture.width, picture.height), picture.rgb),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_in_any_form_stands_where_it_was(prompt_of, form, in_words, demo_vocabulary):
    eyes = Eyes()
    prompt = prompt_of(
        user(text("Look:"), FORMS[form](RED), text(WORDS), FORMS[form](BLUE)), vision=eyes
    )
    assert eyes.seen == [RED, BLUE]
    assert prompt.pictures == (RED, BLUE)
    left, right = around(demo_vocabulary)
    shown = f"{left}[3]{right}"
    assert f"user\nLook:{shown}{WORDS}{shown}<|im_end|>" in in_words(prompt.tokens)
    cells = [token for token in prompt.tokens if token < 0]
    assert cells == [token for one in (RED, BLUE) for token in Eyes().cells(one) if token < 0]


def test_lines_are_joined_as_in_llama_cpp():
    """A new line between texts, none beside a picture."""
    parts = [text("a"), text("b"), openai(RED), text("c"), text(""), text("d"), openai(RED)]
    (message,) = checked_messages(user(*parts))
    assert message["content"] == "a\nbc\nd"
    assert [each.at for each in message["pictures"]] == [3, 6]


@pytest.mark.parametrize("template", [CHATML, GEMMA, PARTS, "{{ messages[0].content }}"])
def test_any_template_shows_each_picture_once(prompt_of, template, in_words):
    prompt = prompt_of(
        user(openai(RED), text(WORDS), openai(BLUE)), template=template, vision=Eyes()
    )
    said = in_words(prompt.tokens)
    assert said.count("[3]") == 2
    assert said.index("[3]") < said.index(WORDS) < said.rindex("[3]")


def test_a_template_that_takes_only_parts_gets_texts_as_parts(prompt_of, in_words):
    """Without them it would leave out all that is said, with and without pictures."""
    assert WORDS in in_words(prompt_of(user(text(WORDS)), template=PARTS).tokens)


@pytest.mark.parametrize("template", ["nothing", "{{ messages[0].content * 2 }}"])
def test_a_template_that_leaves_a_picture_out_or_repeats_it_is_refused(prompt_of, template):
    with pytest.raises(TemplateError, match="leaves out a picture, or shows it twice"):
        prompt_of(user(openai(RED)), template=template, vision=Eyes())


def test_no_text_can_speak_for_a_picture(prompt_of, in_words):
    """Marks are digits that no message has; those of other programs mean nothing."""
    tries = [*("<__media__>", "<image>", "<start_of_image>", "[img-1]"), "0" * 28, "9" * 28]
    said = in_words(prompt_of(user(*map(text, tries), openai(RED)), vision=Eyes()).tokens)
    assert said.count("[3]") == 1
    assert all(each in said for each in tries)


def test_a_control_text_cannot_be_joined_around_a_picture(prompt_of, demo_vocabulary):
    prompt = prompt_of(user(text("<|im_"), openai(RED), text("end|>")), vision=Eyes())
    ends = demo_vocabulary.tokenize("<|im_end|>", parse_special=True)
    plain = prompt_of(user(text("x")), vision=Eyes())
    assert sum(token in ends for token in prompt.tokens) == sum(
        token in ends for token in plain.tokens
    )


def test_a_blind_model_gets_a_note_of_an_earlier_picture_and_no_later_one(prompt_of, in_words):
    shown = user(text(WORDS), openai(RED))
    later = [{"role": "assistant", "content": "Red."}, {"role": "user", "content": "Sure?"}]
    said = in_words(prompt_of([*shown, *later]).tokens)
    assert f"{WORDS}\n{PICTURE_NOTE}<|im_end|>" in said
    with pytest.raises(OptionError, match=r"message 2 has an image in it.*projector") as caught:
        prompt_of([*later, *shown])
    assert "mmproj" in caught.value.hint


def test_an_error_names_a_picture_by_its_file(prompt_of, tmp_path):
    """A message has a number for programs alone."""
    (tmp_path / "red.png").write_bytes(RED.png())
    shown = user(text(WORDS), {"type": "image", "image": tmp_path / "red.png"})
    with pytest.raises(OptionError, match=r"^red\.png is an image, and .* no projector"):
        prompt_of(shown)

    class Refusing(Eyes):
        def cells(self, picture):
            raise OptionError("it is too dark", "Light it.")

    with pytest.raises(OptionError, match=r"^red\.png is an image: it is too dark"):
        prompt_of(shown, vision=Refusing())


def test_a_conversation_goes_on_after_a_picture_that_cannot_be_read(prompt_of, in_words):
    """In the last message it is an error, later a note."""
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    asked = user(text("a"), broken, text("b"), openai(RED), text("c"))
    with pytest.raises(OptionError, match=r"message 0 has an image in it: .*not a picture"):
        prompt_of(asked, vision=Eyes())
    prompt = prompt_of([*asked, {"role": "user", "content": "Sure?"}], vision=Eyes())
    note = "[An image was here, which cannot be read.]"
    said = re.sub(r"[^\n\[\]]{0,9}\[3\][^\n\[\]]{0,9}", "RED", in_words(prompt.tokens))
    assert f"a\n{note}\n" in said
    assert "RED" in said
    assert said.count(note) == 1
    assert prompt.pictures == (RED,)


def test_pictures_of_a_prompt_have_a_bound_together(prompt_of, in_words, monkeypatch):
    """The last ones count; none is decoded once it is reached."""
    monkeypatch.setattr("localspec.chat.shown.MOST_PROMPT_PIXELS", 5)
    read = []
    decode = Picture.read
    monkeypatch.setattr(Picture, "read", lambda given: read.append(given) or decode(given))
    many = [message for _ in range(9) for message in user(openai(RED), text("x"))]
    prompt = prompt_of(many, vision=Eyes())
    assert prompt.pictures == (RED, RED)
    assert len(read) == 3
    assert in_words(prompt.tokens).count("which cannot be read") == 7
    with pytest.raises(OptionError, match=r"message 0 .* more than 5 pixels together"):
        prompt_of(user(openai(RED), openai(RED), openai(RED)), vision=Eyes())


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image_url"}, "it has no data"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "not supported"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "not supported"),
        ({"type": "image", "image": "x.png"}, "not supported"),
        ({"type": "image", "source": {}}, "it has no data"),
        ({"type": "image", "source": {"type": "base64", "data": "!!"}}, "not base64"),
        ({"type": "input_image", "file_id": "x"}, "it has no data"),
        ({"type": "image", "image": 3}, "the picture is 3"),
        ({"type": "image", "image": "https://a.b/c.png"}, "images are not downloaded"),
    ],
)
def test_a_part_without_a_picture_is_refused_by_its_message(part, said):
    """Files are never read by name from a message, which may come from anywhere."""
    with pytest.raises(OptionError, match=f"message 1 has an image in it.*{said}") as caught:
        checked_messages([{"role": "user", "content": "x"}, *user(part)])
    assert caught.value.hint
    (first, _) = checked_messages([*user(part), {"role": "user", "content": "x"}])
    assert first["content"] == PICTURE_NOTE


@pytest.mark.parametrize("part", [{"type": "image_url"}, {"type": "input_file", "data": "x"}])
def test_what_a_tool_showed_last_becomes_a_note(part):
    """Nobody is there who could ask otherwise, and the session goes on."""
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c", "content": [part]}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = checked_messages([*user(text("Look.")), said, result])[-1]["content"]
    assert " was here, which this model cannot " in told


def test_json_cannot_place_pictures_by_itself():
    content = {"role": "user", "content": "x", "pictures": [[0, "/etc/passwd"]]}
    with pytest.raises(OptionError, match="pictures in a form that cannot be read"):
        checked_messages([content])


def test_joined_messages_keep_the_places_of_their_pictures():
    parts = [text("ab"), openai(RED), text("c")]
    (merged,) = merged_messages(checked_messages([*user(*parts), *user(*parts)]))
    assert merged["content"] == "abc\n\nabc"
    assert [each.at for each in merged["pictures"]] == [2, 7]


def test_a_chat_shows_pictures_before_the_text(demo_vocabulary, in_words, tmp_path):
    path = tmp_path / "red.png"
    path.write_bytes(RED.png())
    eyes = Eyes()
    chat = Chat(NoModels(demo_vocabulary, vision=eyes), template="chatml")
    tokens = chat.prompt_tokens(WORDS, [path, BLUE])
    left, right = around(demo_vocabulary)
    assert f"user\n{left}[3]{right}{left}[3]{right}{WORDS}" in in_words(tokens)
    assert eyes.seen == [RED, BLUE]
    for wrong in ("red.png", b"x", 3):
        with pytest.raises(OptionError, match="images is"):
            chat.prompt_tokens(WORDS, wrong)
