"""Whether a sharded artifact is all there: what an index names, and what numbers in names promise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from engines.identity.artifact_files import Found, Scan
from engines.identity.trouble import shown

# model-00001-of-00003.safetensors, and llama.cpp's split GGUF.
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.[^/]+)")
_SHOWN = 3


def missing_parts(found: Scan, tensors: Mapping[str, frozenset[str]]) -> list[str]:
    """Sentences on every part that should be there and is not.

    Args:
        tensors: relative path of a safetensors file → names of the tensors in its header.
    """
    there = {one.path: one for one in found.files}
    problems = list(_gaps(there))
    for one in found.files:
        if one.path.endswith(".index.json"):
            problems += _index(one, there, tensors)
    return problems


def _gaps(there: Mapping[str, Found]) -> Iterator[str]:
    sets: dict[tuple[str, int, str], set[int]] = {}
    for path in there:
        matched = _NUMBERED.fullmatch(path)
        if matched is not None:
            key = (matched["stem"], int(matched["count"]), matched["end"])
            sets.setdefault(key, set()).add(int(matched["number"]))
    for (stem, count, end), numbers in sorted(sets.items()):
        first = 0 if 0 in numbers else 1
        missing = sorted(set(range(first, first + count)) - numbers)
        if missing:
            names = [f"{stem}-{number:05}-of-{count:05}{end}" for number in missing]
            yield (
                f"{_few(names)}: not there, though {len(numbers)} of {count} parts are: finish the download, "
                "or name the folder that holds all parts"
            )


def _index(index: Found, there: Mapping[str, Found], tensors: Mapping[str, frozenset[str]]) -> Iterator[str]:
    name = shown(index.place)
    try:
        with open(index.place, "rb") as file:
            weight_map = json.load(file)["weight_map"]
        pairs = [(str(tensor), str(shard)) for tensor, shard in weight_map.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield f"{name}: an index without a weight_map of tensor names to files: download it again"
        return
    except OSError as error:
        yield f"{name}: cannot be read again: {error.strerror or error}"
        return
    folder = index.path[: index.path.rfind("/") + 1]
    named: dict[str, set[str]] = {}
    for tensor, shard in pairs:
        named.setdefault(folder + shard, set()).add(tensor)
    absent = sorted(shard for shard in named if shard not in there)
    if absent:
        yield f"{name}: names {_few(absent)}, which is not there: finish the download"
    for shard in sorted(named.keys() & tensors.keys()):
        lacking = sorted(named[shard] - tensors[shard])
        if lacking:
            yield (
                f"{name}: {_few(lacking)} should be in {shown(shard)}, whose header has no such tensor: "
                "index and shards are of different downloads"
            )
    for path in _siblings(named, there):
        yield (
            f"{name}: does not name {shown(path)}, which is numbered as one of its shards: "
            "index and shards are of different downloads"
        )


def _siblings(named: Mapping[str, set[str]], there: Mapping[str, Found]) -> Iterator[str]:
    """Files that belong, by their numbered names, to the set of an index that does not name them."""
    sets = {(m["stem"], m["count"], m["end"]) for m in map(_NUMBERED.fullmatch, named) if m is not None}
    for path in there:
        matched = _NUMBERED.fullmatch(path)
        if matched is None or path in named:
            continue
        if (matched["stem"], matched["count"], matched["end"]) in sets:
            yield path


def _few(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(map(shown, names[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
