"""Small artifacts with real headers, written byte by byte: safetensors, GGUF, folders, a hub cache."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import struct
from collections.abc import Mapping
from typing import Any

TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}\n"
_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def safetensors(tensors: Mapping[str, int], *, dtype: str = "BF16", fill: bytes = b"\x11") -> bytes:
    """A file of vectors: name → number of values."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, count in tensors.items():
        size = count * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + fill * end


def gguf(
    *,
    template: str | None = TEMPLATE,
    tensors: Mapping[str, int] | None = None,
    order: str = "<",
    **pairs: Any,
) -> bytes:
    """A GGUF of float32 vectors. ``pairs`` are further metadata: ``general__type="adapter"``."""
    told: dict[str, Any] = {"general.architecture": "llama", "general.file_type": 3}
    told |= {name.replace("__", "."): value for name, value in pairs.items()}
    told["tokenizer.ggml.tokens"] = ["a", "bc", ""]
    told["tokenizer.ggml.scores"] = [0.5, -1.0]
    if template is not None:
        told["tokenizer.chat_template"] = template
    tensors = {"a.weight": 32, "b.weight": 8} if tensors is None else tensors
    out = b"GGUF" + struct.pack(order + "IQQ", 3, len(tensors), len(told))
    for name, value in told.items():
        out += _text(name, order) + _value(value, order)
    offset = 0
    for name, count in tensors.items():
        out += _text(name, order) + struct.pack(order + "IQIQ", 1, count, 0, offset)
        offset += -(-4 * count // 32) * 32
    out += b"\0" * (-len(out) % 32)
    return out + b"\x07" * offset


def _text(value: str, order: str) -> bytes:
    raw = value.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def _value(value: Any, order: str) -> bytes:
    if isinstance(value, str):
        return struct.pack(order + "I", 8) + _text(value, order)
    if isinstance(value, int):
        return struct.pack(order + "II", 4, value)
    if all(isinstance(one, str) for one in value):
        items = b"".join(_text(one, order) for one in value)
        return struct.pack(order + "IIQ", 9, 8, len(value)) + items
    return struct.pack(f"{order}IIQ{len(value)}f", 9, 6, len(value), *value)


def model_folder(folder: pathlib.Path, **files: bytes | str) -> pathlib.Path:
    """A whole model in plain files. ``files`` replace or add some: ``config__json="{}"``."""
    contents: dict[str, bytes | str] = {
        "model.safetensors": safetensors({"wte": 64, "head": 64}),
        "config.json": '{"model_type": "llama", "eos_token_id": 2}',
        "generation_config.json": '{"temperature": 0.6}',
        "tokenizer.json": '{"model": {"vocab": {"a": 0}}}',
        "tokenizer_config.json": json.dumps({"chat_template": TEMPLATE, "model_max_length": 10**30}),
        "README.md": "# A model\n",
        ".gitattributes": "*.safetensors filter=lfs\n",
    }
    contents |= {name.replace("__", "."): content for name, content in files.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def sharded(folder: pathlib.Path, shards: int = 3) -> pathlib.Path:
    """A model of several safetensors files with their index."""
    model_folder(folder)
    (folder / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        (folder / name).write_bytes(safetensors({f"layer.{number}": 16}, fill=bytes([number])))
        weight_map[f"layer.{number}"] = name
    index = {"metadata": {"total_size": 32 * shards}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def hub_cache(folder: pathlib.Path, plain: pathlib.Path, *, revision: str = "a" * 40) -> pathlib.Path:
    """The files of ``plain`` as the hub's cache keeps them; the repository's folder."""
    repository = folder / "models--acme--tiny"
    for part in ("blobs", "refs", f"snapshots/{revision}"):
        (repository / part).mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(revision)
    for file in plain.iterdir():
        content = file.read_bytes()
        large = file.suffix == ".safetensors"
        # The hub names what LFS keeps by SHA-256, the rest by git's SHA-1.
        named = hashlib.sha256(content) if large else hashlib.sha1(b"blob %d\0" % len(content) + content)
        (repository / "blobs" / named.hexdigest()).write_bytes(content)
        link = repository / "snapshots" / revision / file.name
        if not link.exists():
            os.symlink(f"../../blobs/{named.hexdigest()}", link)
    return repository
