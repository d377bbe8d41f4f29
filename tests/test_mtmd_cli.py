"""What llama.cpp's own program for pictures says is what localspec says."""

from __future__ import annotations

import itertools
import subprocess

import pytest
from picture_prompts import asked, prompt_of
from PIL import Image
from vision_maker import KINDS, random_picture, write_vision_pair

import localspec
from comparison.llama_tools import binaries_of, default_folder, program_in
from localspec.llama.options import LlamaOptions

PROGRAM = program_in(binaries_of(default_folder()), "llama-mtmd-cli")
ROUNDING = 0.01  # nats: where the likeliest two are nearer, either may be said
ONLY_CONTENT = "{% for message in messages %}{{ message.content }}{% endfor %}"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not PROGRAM.is_file(), reason="llama-mtmd-cli is not built"),
]


@pytest.mark.parametrize("size", [(131, 57), (64, 64)])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_about_a_picture_is_llama_cpps_own(tmp_path, kind, size):
    target, mmproj = write_vision_pair(tmp_path, kind)
    picture = random_picture(3, *size)
    path = tmp_path / "picture.png"
    Image.frombytes("RGB", size, bytes(picture.rgb)).save(path)
    options = [
        "--temp",
        "0",
        "-n",
        "24",
        "-c",
        "512",
        "--jinja",
        "--chat-template",
        ONLY_CONTENT,
    ]
    files = ["-m", target, "--mmproj", mmproj, "--image", path]
    run = subprocess.run(
        [PROGRAM, *files, "-p", "Once upon", *options],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    with localspec.load(
        target=target,
        mmproj=mmproj,
        target_options=LlamaOptions(flash_attention="off"),
        draft_tokens=0,
        memory=False,
        context_length=512,
        num_threads=1,
    ) as engine:
        prompt = prompt_of(engine, picture, "Once upon")
        reply, _decoded = asked(engine, prompt, max_tokens=24, logprobs=2)
    theirs = run.stdout.decode("utf-8", "replace").replace("<s>", "").strip()  # a control token
    assert len(theirs) > 3
    pairs = zip(theirs, reply.text.strip(), strict=False)
    num_same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if num_same < len(theirs):
        ends = itertools.accumulate(len(token.text) for token in reply.logprobs)
        parting = next(
            row for row, end in zip(reply.logprobs, ends, strict=True) if end > num_same
        )
        first, second = (token.logprob for token in parting.top_before)
        assert first - second < ROUNDING
