"""What a file of a model folder is for, told by its name.

A file whose kind is not known counts (an engine might read it) and says so. Only what no engine reads, or
what says nothing about how a model answers, is left out, and is listed with its reason.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch


class Role(enum.StrEnum):
    """In the order in which a change of such a file moves tokens."""

    WEIGHT = "weight"
    ADAPTER = "adapter"
    TOKENIZER = "tokenizer"
    TEMPLATE = "template"
    CONFIG = "config"
    GENERATION_CONFIG = "generation_config"
    OTHER = "other"


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A file's role, and why where the name alone does not tell; no role: it is no part of the artifact."""

    role: Role | None
    reason: str | None = None
    damage: str | None = None
    """Set where such a file means that the artifact is not whole."""


_UNFINISHED = Kind(None, damage="an unfinished download: finish it, or remove the file")
_TRAINING = Kind(None, "training state: nothing that serves reads it")
_WORDS = Kind(None, "words for people")
_PICTURE = Kind(None, "a picture")
_HOUSE = Kind(None, "house-keeping of another tool")
_CODE = Kind(Role.OTHER, "code that an engine may run with the model (trust_remote_code)")
_INDEX = Kind(Role.CONFIG, "which file holds which tensor")

# The first pattern that fits counts. Names are compared in lower case.
_KINDS: tuple[tuple[str, Kind], ...] = (
    *((name, _UNFINISHED) for name in ("*.incomplete", "*.part", "*.aria2", "*.crdownload", "*.download")),
    ("adapter_config.json", Kind(Role.ADAPTER)),
    ("adapter_model.*", Kind(Role.ADAPTER)),
    ("generation_config.json", Kind(Role.GENERATION_CONFIG)),
    ("chat_template.json", Kind(Role.TEMPLATE)),
    *((name, Kind(Role.TEMPLATE)) for name in ("*.jinja", "*.jinja2")),
    *((name, _INDEX) for name in ("*.safetensors.index.json", "*.bin.index.json")),
    *(
        (name, _TRAINING)
        for name in ("optimizer*.pt", "optimizer*.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth")
    ),
    *((name, _TRAINING) for name in ("trainer_state.json", "training_args.bin", "events.out.tfevents*")),
    *(
        (name, Kind(Role.TOKENIZER))
        for name in ("tokenizer.json", "tokenizer.model*", "tokenizer_config.json", "special_tokens_map.json")
    ),
    *((name, Kind(Role.TOKENIZER)) for name in ("added_tokens.json", "vocab*.json", "vocab*.txt")),
    *((name, Kind(Role.TOKENIZER)) for name in ("merges.txt", "*.tiktoken", "tekken.json", "*.spm")),
    *((name, Kind(Role.TOKENIZER)) for name in ("spiece.model", "sentencepiece*.model", "tokenizer*.json")),
    *((name, Kind(Role.WEIGHT)) for name in ("*.safetensors", "*.gguf", "*.ggml", "*.bin", "*.pt", "*.pth")),
    *((name, Kind(Role.WEIGHT)) for name in ("*.ckpt", "*.npz", "*.h5", "*.msgpack", "*.onnx")),
    *((name, Kind(Role.WEIGHT)) for name in ("*.onnx_data", "*.onnx.data", "*.engine", "*.plan")),
    ("forkgate-model.json", Kind(None, "forkgate's own note of where the model was made from")),
    *((name, Kind(Role.CONFIG)) for name in ("config.json", "params.json", "*_config.json", "*config*.json")),
    *((name, Kind(Role.CONFIG)) for name in ("modules.json", "config_*.json")),
    *((name, _CODE) for name in ("*.py", "*.so")),
    *((name, _WORDS) for name in ("readme*", "licen[cs]e*", "notice*", "*.md", "*.rst", "*.pdf", "*.html")),
    *((name, _WORDS) for name in ("use_policy*", "copying*", "authors*", "citation*", "changelog*")),
    *((name, _PICTURE) for name in ("*.png", "*.jpg", "*.jpeg", "*.gif", "*.webp", "*.svg")),
    *((name, _HOUSE) for name in (".gitattributes", ".gitignore", ".gitmodules", ".gitkeep", ".ds_store")),
    *((name, _HOUSE) for name in ("*.lock", "*.metadata", "*.swp", "*~", "cachedir.tag", ".huggingface")),
)
_FOLDERS: dict[str, str] = {
    ".git": "the history of another tool",
    ".cache": "what a download tool keeps for itself",
    ".huggingface": "what a download tool keeps for itself",
    ".locks": "lock files of a download tool",
    ".no_exist": "what a download tool keeps for itself",
    "__pycache__": "compiled again from its sources",
    ".ipynb_checkpoints": "copies of a notebook",
}
_UNKNOWN = Kind(Role.OTHER, "not a kind of file that is known here; it counts, since an engine may read it")


def kind_of(name: str, *, beside_adapter: bool = False) -> Kind:
    """The kind of a file by its own name (no folders).

    Args:
        beside_adapter: its folder has an ``adapter_config.json``: the weights in it are the adapter's.
    """
    lowered = name.lower()
    found = next((kind for pattern, kind in _KINDS if fnmatch.fnmatchcase(lowered, pattern)), _UNKNOWN)
    if beside_adapter and found.role is Role.WEIGHT:
        return Kind(Role.ADAPTER)
    return found


def ignored_folder(name: str) -> str | None:
    """Why a folder of this name is no part of an artifact; None when it may be."""
    return _FOLDERS.get(name)
