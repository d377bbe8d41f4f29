"""LoRA adapters: what they compute, whose caches are whose, and what is refused in words."""

from __future__ import annotations

import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import inside
import localspec
from adapter_maker import write_adapter, write_merged
from command_line import run
from engines import PLACES, all_at_once
from gguf_maker import write_random_model
from localspec.gguf_file.adapter import split_scale
from localspec.llama import joint_decode
from localspec.presets.presets import find_preset, read_presets, user_presets_file
from server_runner import presets_of, running_server
from standin_hub import REPO, TARGET

STRENGTH = 0.3
TEXT = list(range(300, 420))


@pytest.fixture(scope="module")
def files(tmp_path_factory, demo_target):
    """Two adapters for the demo's target."""
    folder = tmp_path_factory.mktemp("adapters")
    return [
        write_adapter(folder / f"{name}.gguf", demo_target, seed=seed, strength=STRENGTH)
        for seed, name in enumerate(("first", "second"), 1)
    ]


@pytest.fixture(scope="module")
def adapted(files, demo_target):
    """The demo's target with both, the second at half."""
    adapters = [files[0], localspec.Adapter(files[1], 0.5)]
    with localspec.load(
        target=demo_target, adapters=adapters, draft_tokens=0, num_threads=1
    ) as engine:
        yield engine


def said(engine, *, scales=None, max_tokens=12, is_fresh=True):
    """The ids and log-probabilities of a greedy answer, and the reply.

    is_fresh: whether nothing of its prompt is cached, which rounds otherwise.
    """
    if is_fresh:
        engine.exclusively(lambda _loop: None)
    reply = engine.generate_raw(
        TEXT, temperature=0, max_tokens=max_tokens, logprobs=20, adapter_scales=scales
    ).reply()
    tops = [[(top.token_id, top.logprob) for top in each.top_before] for each in reply.logprobs]
    return reply.token_ids, tops, reply


def test_it_computes_what_the_merged_model_does(tmp_path, demo_target, files, adapted):
    """Each weight plus its two matrices' product, times alpha by rank, times the scale."""
    whole = localspec.LlamaOptions(cache_type_k="f32", cache_type_v="f32")  # nothing is rounded
    options = {"draft_tokens": 0, "target_options": whole, "num_threads": 1}
    for scales in ((1.0, 0.5), (0.0, 1.0), (-0.5, 0.25)):
        by_seed = dict(zip((1, 2), scales, strict=True))
        merged = write_merged(tmp_path / "merged.gguf", demo_target, by_seed, STRENGTH)
        bare = write_merged(tmp_path / "bare.gguf", demo_target, {}, STRENGTH)
        with localspec.load(target=merged, **options) as engine:
            expected = _first_row(engine)
        adapters = [
            localspec.Adapter(file, scale) for file, scale in zip(files, scales, strict=True)
        ]
        with localspec.load(target=bare, adapters=adapters, **options) as engine:
            found = _first_row(engine)
        assert found == pytest.approx(expected, abs=1e-3)
        with localspec.load(target=bare, **options) as engine:
            assert max(abs(a - b) for a, b in zip(_first_row(engine), found, strict=True)) > 0.1


def _first_row(engine):
    """The logits behind a text."""
    return engine.exclusively(lambda loop: np.array(loop.target.decode(TEXT, 1)[0])).tolist()


def test_scale_0_is_the_bare_model_to_the_bit(demo_target, adapted):
    with localspec.load(target=demo_target, draft_tokens=0, num_threads=1) as bare:
        assert said(adapted, scales=(0, 0))[:2] == said(bare)[:2]
    assert said(adapted, scales=(1, 0))[1] != said(adapted, scales=(0, 0))[1]
    assert said(adapted, scales={1: 0.5})[:2] == said(adapted, scales=(0, 0.5))[:2]


def test_an_answer_has_the_numbers_of_an_engine_with_its_scales(files, demo_target, adapted):
    for scales in ((1.0, 0.0), (0.25, 1.0)):
        adapters = [
            localspec.Adapter(file, scale) for file, scale in zip(files, scales, strict=True)
        ]
        with localspec.load(
            target=demo_target, adapters=adapters, draft_tokens=0, num_threads=1
        ) as engine:
            assert engine.adapter_scales == scales
            # The order in which libllama adds two is that of their addresses.
            assert _close(said(engine)[1], said(adapted, scales=scales)[1])


def _close(first, second):
    return all(
        abs(dict(ours)[token] - number) < 1e-3
        for ours, theirs in zip(first, second, strict=True)
        for token, number in theirs[:5]
    )


def test_a_prefix_is_shared_under_the_same_scales_alone(adapted):
    said(adapted, scales=(1, 1))
    asked = (((1, 1), True), ((1, 0.5), False), ((1, 0.5), True), ((0, 0), False))
    for scales, is_shared in asked:
        reply = said(adapted, scales=scales, is_fresh=False)[2]
        assert (reply.stats.cached_prompt_tokens > 0) is is_shared, scales
    found = said(adapted, scales=(0.5, 0), is_fresh=False)
    assert found[:2] == said(adapted, scales=(0.5, 0))[:2]


def test_a_conversation_that_changes_its_scales_reads_its_text_again(adapted):
    chat = adapted.chat(template="chatml")
    chat.send("Tell me a story about a fox.", temperature=0, max_tokens=20).reply()
    same = chat.send("And then?", temperature=0, max_tokens=8).reply()
    other = chat.send("And then?", temperature=0, max_tokens=8, adapter_scales=(0, 1)).reply()
    assert same.stats.cached_prompt_tokens > 0
    assert other.stats.cached_prompt_tokens == 0


def test_answers_with_different_scales_are_never_in_one_decode(files, demo_target, monkeypatch):
    joined = []
    prompts, options = [TEXT, TEXT[5:]], {"temperature": 0, "max_tokens": 24}
    with localspec.load(
        target=demo_target, adapters=files, draft_tokens=0, num_threads=1, parallel=2
    ) as engine:
        alone = [
            engine.generate_raw(prompt, adapter_scales=scales, **options).reply().token_ids
            for prompt, scales in zip(prompts, ((1, 0), (0, 1)), strict=True)
        ]
        note_decodes(monkeypatch, joined)
        all_at_once(engine, prompts, adapter_scales=(1, 0), **options)
        assert max(map(len, joined)) == 2  # under the same ones they are
        joined.clear()
        answers = [
            engine.generate_raw(prompt, adapter_scales=scales, **options)
            for prompt, scales in zip(prompts, ((1, 0), (0, 1)), strict=True)
        ]
        with ThreadPoolExecutor(2) as pool:
            with inside.held(inside.worker_of(engine), 2):
                replies = [pool.submit(answer.reply) for answer in answers]
            both = [reply.result().token_ids for reply in replies]
    assert max(map(len, joined)) == 1
    assert {scales for each in joined for scales in each} == {(1, 0), (0, 1)}
    assert [ids[:4] for ids in both] == [ids[:4] for ids in alone]


def test_a_check_runs_under_the_scales_that_it_is_given(files, demo_target):
    with localspec.load(target=demo_target, adapters=files, num_threads=1) as engine:
        found = []
        for scales in (None, (0, 0.5), (0,)):
            found.append(engine.exclusively(lambda loop: loop.target.scales, scales=scales))
        assert found == [(1, 1), (0, 0.5), (0, 0)]
        with pytest.raises(localspec.OptionError):
            engine.exclusively(lambda loop: None, scales=(1, 1, 1))


def note_decodes(monkeypatch, joined):
    """Has the scales of each decode's parts noted."""
    decode_parts = joint_decode.decode_parts

    def watched(parts):
        joined.append([part.model.scales for part in parts])
        decode_parts(parts)

    monkeypatch.setattr(joint_decode, "decode_parts", watched)


@pytest.mark.parametrize("opened", PLACES)
def test_caches_on_disk_are_of_their_scales(tmp_path, files, demo_target, opened):
    options = {"target": demo_target, "draft_tokens": 0, "num_threads": 1}
    path = tmp_path / "text.caches"
    with opened(**options, adapters=files) as engine:
        chat = engine.chat(template="chatml")
        chat.send("Tell me a story about a fox.", max_tokens=30).reply()
        messages = chat.transcript
        assert engine.save_caches(chat, path)
    changed = [localspec.Adapter(file, 0.5) for file in files]
    for adapters, fits in ((changed, False), ((), False), (files, True)):
        with opened(**options, adapters=adapters) as engine:
            chat = engine.chat(messages=messages, template="chatml")
            assert engine.load_caches(chat, path) is fits


def test_what_is_learned_is_kept_by_scales(files, demo_target):
    with localspec.load(target=demo_target, adapters=files, num_threads=1) as engine:
        target = inside.target(engine)
        identities = {target.identity_under(scales) for scales in ((1, 1), (1, 0.5), (0, 0))}
        lane = inside.lanes(engine)[0]
        before = lane.profile.path
        said(engine, scales=(0, 1))
        assert lane.profile.path != before
        said(engine)
        assert lane.profile.path == before
    assert len(identities) == 3
    with localspec.load(target=demo_target, num_threads=1) as engine:
        assert inside.target(engine).identity_under(()) in identities


def test_drafts_change_nothing(files, exact_target, demo_draft, demo_head):
    """What drafts keeps its own weights; the text stays the adapted target's, to the bit."""
    usual = {"target": exact_target, "adapters": files, "num_threads": 1, "exact": True}
    asked = [
        {"temperature": 0, "max_tokens": 40},
        {"temperature": 0.8, "seed": 7, "max_tokens": 40},
    ]
    ways = (
        {"draft_tokens": 0},
        {"draft": demo_draft, "draft_tokens": 3},
        {"head": demo_head, "proposer": "head", "draft_tokens": 3},
        {"proposer": "lookup", "draft_tokens": 3},
    )
    texts = []
    for way in ways:
        with localspec.load(**usual, **way) as engine:
            replies = [engine.generate_raw(TEXT, **each).reply() for each in asked]
            texts.append([reply.token_ids for reply in replies])
            if way["draft_tokens"]:
                assert sum(reply.stats.num_draft_tokens for reply in replies) > 0, way
    assert texts[1:] == texts[:1] * 3


def test_other_scales_can_be_set_for_answers_to_come(adapted):
    usual = adapted.adapter_scales
    expected = said(adapted, scales=(0, 1))[:2]
    adapted.adapter_scales = (0, 1)
    try:
        assert said(adapted)[:2] == expected
        assert adapted.adapters[1].scale == 1.0
    finally:
        adapted.adapter_scales = usual


@pytest.mark.process
def test_a_process_that_is_started_again_has_the_scales(files, demo_target):
    with localspec.IsolatedEngine(
        target=demo_target, adapters=files, draft_tokens=0, num_threads=1
    ) as engine:
        engine.adapter_scales = (0, 0.5)
        expected = said(engine, is_fresh=False)[:2]
        os.kill(engine.process_id, signal.SIGKILL)
        assert said(engine, is_fresh=False)[:2] == expected
        assert engine.adapter_scales == (0, 0.5)


# What is refused


def refused(files, demo_target, tmp_path, error=localspec.LocalspecError, **made):
    path = write_adapter(tmp_path / "odd.gguf", made.pop("model", demo_target), **made)
    with pytest.raises(error) as found:
        localspec.load(target=demo_target, adapters=[path])
    return str(found.value)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"architecture": "gpt2"}, "for the architecture 'gpt2', not 'llama'"),
        ({"kind": "model"}, "is of type 'model', not an adapter"),
        ({"form": "cvec"}, "an adapter of type 'cvec', not 'lora'"),
        ({"calls": [1, 2]}, "an activated LoRA (aLoRA)"),
        ({"alpha": 8}, "its adapter.lora.alpha is not a 32-bit float"),
        ({"alpha": float("nan")}, "its adapter.lora.alpha is nan"),
        ({"width_factor": 2}, "its matrices for blk.0."),
        ({"without": [".lora_b"]}, "has one of its two matrices"),
        ({"changed": ()}, "it has no weights"),
        ({"beside": {"blk.0.attn_q.bias": (4, 4)}}, "is no tensor of an adapter"),
        (
            {"beside": {"x.lora_a": (4, 4), "x.lora_b": (4, 4)}},
            "the model has no x",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_words(
    files, demo_target, tmp_path, made, words
):
    assert words in refused(files, demo_target, tmp_path, **made)


def test_embeddings_that_are_the_output_too_are_refused(tmp_path, demo_target):
    """libllama ends the process there: it takes the two matrices the other way round."""
    header = localspec.explain(target=demo_target)
    shape = {"token_embd.weight.lora_a": (header.target.vocab_size, 4)}
    shape["token_embd.weight.lora_b"] = (header.target.width, 4)
    path = write_adapter(tmp_path / "embeddings.gguf", demo_target, beside=shape)
    if header.target.num_output_weights:
        localspec.load(target=demo_target, adapters=[path]).close()
    else:
        with pytest.raises(localspec.PairError, match="which is the model's output layer, too"):
            localspec.load(target=demo_target, adapters=[path])


def test_a_damaged_file_is_refused_in_words(tmp_path, files, demo_target):
    whole = files[0].read_bytes()
    path = tmp_path / "cut.gguf"
    for size in (0, 3, 40, 200, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:size])
        with pytest.raises(localspec.ModelFileError):
            localspec.load(target=demo_target, adapters=[path])


def test_another_model_of_the_architecture_is_refused(tmp_path, files, demo_target):
    other = write_random_model(tmp_path / "other.gguf", demo_target, width=32)
    with pytest.raises(localspec.PairError, match=r"is no adapter for other\.gguf"):
        localspec.load(target=other, adapters=files)
    with pytest.raises(localspec.ModelFileError, match="of type 'adapter', not a model"):
        localspec.load(target=files[0])


@pytest.mark.parametrize(
    ("adapters", "words"),
    [
        ("a.gguf", "the adapters are 'a.gguf'"),
        ([3], "an adapter is 3"),
        (["none.gguf"], "none.gguf does not exist"),
        (["hf:owner/repo/lora.gguf"], "hf:owner/repo/lora.gguf is not on this machine"),
    ],
)
def test_adapters_that_are_none_are_refused_in_words(demo_target, adapters, words):
    with pytest.raises(localspec.LocalspecError) as found:
        localspec.load(target=demo_target, adapters=adapters)
    assert words in str(found.value)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e6, "1", None, True])
def test_a_scale_is_a_number(scale, adapted):
    with pytest.raises(localspec.OptionError, match="the scale of an adapter is"):
        localspec.Adapter("a.gguf", scale)
    with pytest.raises(localspec.OptionError):
        adapted.generate_raw(TEXT, adapter_scales=(scale, 1))


def test_a_scale_is_of_an_adapter_that_is_there(adapted, engine):
    with pytest.raises(localspec.OptionError, match="the adapters here are numbers 0 to 1"):
        adapted.generate_raw(TEXT, adapter_scales={2: 1.0})
    with pytest.raises(localspec.OptionError, match="the adapters here are none"):
        engine.generate_raw(TEXT, adapter_scales=[1.0])
    assert engine.adapters == ()


def test_file_and_scale_in_one_text():
    assert split_scale("a.gguf=0.5") == ("a.gguf", 0.5)
    assert split_scale("a.gguf") == ("a.gguf", 1.0)
    assert split_scale("a=b.gguf") == ("a=b.gguf", 1.0)
    assert split_scale("a=b.gguf=-2") == ("a=b.gguf", -2.0)


# What is planned and shown


def test_memory_counts_them(files, demo_target):
    bare = localspec.explain(target=demo_target).memory.models[0]
    found = localspec.explain(target=demo_target, adapters=files)
    with_them = found.memory.models[0]
    assert with_them.adapter_bytes == sum(one.size_bytes for one in found.adapters) - sum(
        _header_bytes(file) for file in files
    )
    assert with_them.weights_bytes - bare.weights_bytes == with_them.adapter_bytes
    with localspec.load(target=demo_target, adapters=files) as engine:
        assert engine.memory().models.models[0].adapter_bytes == with_them.adapter_bytes


def _header_bytes(file):
    from localspec.gguf_file.adapter import read_adapter

    return read_adapter(file).data_start


def test_explain_and_verify_say_that_drafts_keep_their_weights(files, demo_target):
    lora = f"{files[0]}=0.5"
    shown = run("explain", "--target", demo_target, "--lora", lora)
    assert "first.gguf times 0.5: it changes " in shown.stdout
    assert "on the target alone: a draft or a head keeps its own weights" in shown.stdout
    assert f"--lora {lora}" in shown.stdout
    verified = run("verify", "--target", demo_target, "--lora", lora, "--seconds", "5")
    assert "Adapters, on the target alone: first.gguf (0.5)" in verified.stderr
    assert verified.exit_code in (0, 3), verified.stdout


def test_a_command_takes_several(files, demo_target):
    asked = ("generate", "--target", demo_target, "--no-draft", "--temperature", "0")
    asked = (*asked, "--chat-template", "chatml", "--max-tokens", "12", "Hello")
    texts = [
        run(*asked, *options).stdout
        for options in ((), ("--lora", files[0], "--lora", f"{files[1]}=0.5"))
    ]
    assert texts[0] != texts[1]
    odd = run(*asked, "--lora", f"{files[0]}=1e9")
    assert "is not FILE or FILE=SCALE with a scale from -1000 to 1000" in odd.stderr


# Presets


def preset_text(demo_target, file):
    return (
        '[adapted]\ndescription = "x"\ncontext_length = 512\n'
        f'target.path = "{demo_target.as_posix()}"\n'
        f'adapters = [{{path = "{file.as_posix()}", scale = 0.25}}]\n'
        '[bare]\nextends = "adapted"\nadapters = []\n'
    )


def test_a_preset_names_them(files, demo_target, own_config):
    presets = read_presets("mine", preset_text(demo_target, files[0]), {})
    assert [one.scale for one in presets["adapted"].adapters] == [0.25]
    assert presets["bare"].adapters == ()
    with localspec.load(presets["adapted"], draft_tokens=0) as engine:
        assert engine.adapter_scales == (0.25,)
        assert "with the adapter first.gguf (0.25) on the target" in engine.description
    with localspec.load(presets["adapted"], adapters=(), draft_tokens=0) as engine:
        assert engine.adapters == ()
    found = localspec.explain(presets["adapted"])
    assert [(one.name, one.scale) for one in found.adapters] == [("first.gguf", 0.25)]


@pytest.mark.parametrize(
    ("adapters", "words"),
    [
        ('["a.gguf"]', "adapters: each is a table"),
        ("[{scale = 1.0}]", "needs one of: repo, path, packaged"),
        ('[{path = "a.gguf", scale = 5000.0}]', "the scale of an adapter is 5000.0"),
        ('[{path = "a.gguf", sacle = 1.0}]', "sacle: is not a key here"),
    ],
)
def test_a_wrong_key_of_a_preset_is_named(demo_target, adapters, words):
    text = preset_text(demo_target, demo_target).split("adapters")[0]
    with pytest.raises(localspec.PresetError) as found:
        read_presets("mine", f"{text}adapters = {adapters}\n", {})
    assert words in str(found.value)


def test_those_of_the_hub_are_downloaded(hub, tmp_path):
    """With a preset, and by their names."""
    target = tmp_path / "target.gguf"
    target.write_bytes(hub.files[REPO, TARGET].content)
    adapter = write_adapter(tmp_path / "style.gguf", target)
    hub.add("owner/style", "style.gguf", adapter.read_bytes())
    name = "hf:owner/style/style.gguf"
    file = user_presets_file()
    table = '{repo = "owner/style", file = "style.gguf", scale = 0.5}'
    file.write_text(f'{file.read_text()}[styled]\nextends = "qwen2-7b"\nadapters = [{table}]\n')
    for source in ({"preset": "styled"}, {"target": target, "adapters": [name]}):
        with pytest.raises(localspec.PresetError) as found:
            localspec.load(**source, num_threads=1)
        assert "localspec download" in found.value.hint
    explained = localspec.explain("styled")  # by the header on the hub
    assert [(one.name, one.scale) for one in explained.adapters] == [("style.gguf", 0.5)]
    [fetched] = localspec.download(name)
    assert fetched.read_bytes() == adapter.read_bytes()
    with localspec.load(target=target, adapters=[name], num_threads=1) as engine:
        assert engine.adapter_scales == (1.0,)
    num_gets = len(hub.gets("style.gguf"))
    assert localspec.download("styled")[-1] == fetched
    assert len(hub.gets("style.gguf")) == num_gets  # it was there
    with localspec.load("styled", num_threads=1) as engine:
        assert engine.adapter_scales == (0.5,)


def test_models_add_keeps_them(files, demo_target, own_config):
    done = run(
        *("models", "add", "mine", "--target", demo_target),
        *("--lora", f"{files[0]}=0.5", "--lora", files[1]),
    )
    assert done.exit_code == 0, done.stderr
    adapters = find_preset("mine").adapters
    assert [one.file.path for one in adapters] == files
    assert [one.scale for one in adapters] == [0.5, 1.0]
    other = run("models", "add", "other", "--target", files[0], "--lora", files[0])
    assert "of type 'adapter', not a model" in other.stderr
    run("models", "remove", "mine", "--yes")
    assert "mine" not in run("models", "list").stdout


def test_an_adapter_of_ollama_belongs_to_the_model_of_its_manifest(
    tmp_path, files, demo_target, own_config
):
    """Two models may share the file of the target; one with another model's adapter is left."""
    root = tmp_path / "ollama"
    kind = "application/vnd.ollama.image"
    model, adapter, wrong = ("ab" * 32, "cd" * 32, "ef" * 32)
    (root / "blobs").mkdir(parents=True)
    shutil.copy(demo_target, root / f"blobs/sha256-{model}")
    shutil.copy(files[0], root / f"blobs/sha256-{adapter}")
    write_adapter(root / f"blobs/sha256-{wrong}", demo_target, architecture="gpt2")
    for name, digests in (("base", ()), ("tuned", (adapter,)), ("wrong", (wrong,))):
        manifest = root / f"manifests/registry.ollama.ai/library/{name}/latest"
        manifest.parent.mkdir(parents=True)
        layers = [{"mediaType": f"{kind}.model", "digest": f"sha256:{model}"}]
        layers += [{"mediaType": f"{kind}.adapter", "digest": f"sha256:{d}"} for d in digests]
        manifest.write_text(json.dumps({"layers": layers}))
    done = run("models", "import", root, "--yes")
    assert sorted(done.stdout.split()) == ["base-latest", "tuned-latest"]
    assert find_preset("base-latest").adapters == ()
    [kept] = find_preset("tuned-latest").adapters
    assert kept.file.path == root / f"blobs/sha256-{adapter}"
    assert f"with the adapter {kept.file.path}" in done.stderr
    assert f"Skipped: {root / 'blobs'}/sha256-{wrong}" in done.stderr
    localspec.load("tuned-latest", num_threads=1).close()
    again = run("models", "import", root, "--yes")
    assert "Nothing to add" in again.stderr


# The server


@pytest.fixture(scope="module")
def adapted_server(files, demo_target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("presets")
    with presets_of(folder, mine=(demo_target, 512)):
        path = folder / "localspec" / "models.toml"
        tables = ", ".join(f'{{path = "{file.as_posix()}"}}' for file in files)
        path.write_text(path.read_text() + f"adapters = [{tables}]\n")
        with running_server(presets=["mine"]) as server:
            yield server


class Rounded:
    """Log-probabilities, equal to others that are near: what is cached rounds otherwise."""

    def __init__(self, values):
        self.values = np.array(values)

    def __eq__(self, other):
        return bool(np.abs(self.values - other.values).max() < 0.2)

    __hash__ = None


@pytest.mark.process
def test_the_server_lists_and_sets_them(adapted_server, files):
    client = adapted_server.client
    listed = client.get("/lora-adapters").json()
    assert [each["path"] for each in listed] == [str(file) for file in files]
    assert [(each["id"], each["scale"]) for each in listed] == [(0, 1.0), (1, 1.0)]

    def tops(**fields):
        asked = {"prompt": TEXT, "n_predict": 1, "temperature": 0, "n_probs": 5}
        answer = adapted_server.ask("/completion", **asked, **fields)
        assert answer.status_code == 200, answer.text
        [first] = answer.json()["completion_probabilities"]
        found = [each["logprob"] for each in first["top_logprobs"]]
        return Rounded(found)

    off = [{"id": 0, "scale": 0}]
    second = [{"id": 1, "scale": 0.5}]
    usual, bare, halved = tops(), tops(lora=off), tops(lora=second)
    assert usual != bare != halved
    assert halved != usual
    assert tops(lora=[]) == usual
    assert client.post("/lora-adapters", json=second).json() == {"success": True}
    assert [each["scale"] for each in client.get("/lora-adapters").json()] == [0.0, 0.5]
    assert tops() == halved
    assert tops(lora=[{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]) == usual
    [model] = adapted_server.models.all
    os.kill(model.engine.process_id, signal.SIGKILL)
    assert tops() == halved
    assert client.post("/lora-adapters", json=[]).json() == {"success": True}
    assert tops() == bare


@pytest.mark.process
def test_a_prompt_is_rated_under_the_scales_of_its_request(adapted_server, server):
    asked = {"prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": 0}

    def rated(server, **fields):
        answer = server.ask("/v1/completions", **asked, **fields)
        assert answer.status_code == 200, answer.text
        [choice] = answer.json()["choices"]
        return Rounded(choice["logprobs"]["token_logprobs"][1:])

    scales = [{"id": 0, "scale": 0}, {"id": 1, "scale": 0}]
    assert rated(adapted_server, lora=scales) == rated(server)
    scales = [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]
    assert rated(adapted_server, lora=scales) != rated(server)
    refused = adapted_server.ask("/v1/completions", **asked, lora=[{"id": 9, "scale": 1}])
    assert refused.status_code == 400
    assert "for adapter 9" in refused.json()["error"]["message"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/lora-adapters", [{"scale": 1}], "lora[0].id is missing"),
        ("/lora-adapters", [{"id": 5, "scale": 1}], "given for adapter 5"),
        ("/lora-adapters", [{"id": 0, "scale": "x"}], "lora[0].scale is"),
        ("/lora-adapters", {}, "lora is missing"),
        ("/completion", {"prompt": "x", "lora": [{"id": 9, "scale": 1}]}, "for adapter 9"),
        ("/completion", {"prompt": "x", "lora": 3}, "lora is 3"),
        ("/completion", [{"id": 0}], "the body is [{"),
    ],
)
def test_the_server_refuses_in_words(adapted_server, path, body, words):
    answer = adapted_server.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert words in answer.text


@pytest.mark.process
def test_a_model_without_any_has_an_empty_list(server):
    assert server.client.get("/lora-adapters").json() == []
