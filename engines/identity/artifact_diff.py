"""Two artifact records side by side: what differs, in the order in which it moves tokens, and why.

A record holds sums and not contents, so a difference is told as far as names, sums and headers go. What
does not change what an engine computes (a file under another name, JSON with other spacing) is told apart.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import Any

from engines.identity.artifact import ArtifactFile, ArtifactRecord, path_json
from engines.identity.artifact_kinds import Role
from engines.identity.trouble import shown


class Moves(enum.StrEnum):
    """How likely a difference moves tokens; in this order."""

    SURELY = "surely"
    LIKELY = "likely"
    PERHAPS = "perhaps"
    NO = "no"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference: what, between which, and what it means. ``a`` and ``b`` are short descriptions."""

    moves: Moves
    what: str
    path: str
    a: str | None
    b: str | None
    meaning: str

    def to_json(self) -> dict[str, Any]:
        return {
            "moves_tokens": self.moves.value,
            "what": self.what,
            **path_json(self.path),
            "a": self.a,
            "b": self.b,
            "meaning": self.meaning,
        }


_BY_ROLE: dict[Role, tuple[Moves, str]] = {
    Role.WEIGHT: (Moves.SURELY, "other weights give other logits at every step"),
    Role.ADAPTER: (Moves.SURELY, "another adapter gives other logits wherever it is in use"),
    Role.TOKENIZER: (
        Moves.LIKELY,
        "the same text may become other token IDs, and the same IDs other text",
    ),
    Role.TEMPLATE: (Moves.LIKELY, "the same chat messages become another prompt"),
    Role.CONFIG: (
        Moves.LIKELY,
        "the model's shape, its scaling of positions, its precision or its end tokens may be read otherwise",
    ),
    Role.GENERATION_CONFIG: (
        Moves.PERHAPS,
        "engines take sampling defaults and end tokens from it: it moves requests that leave those out",
    ),
    Role.OTHER: (Moves.PERHAPS, "an engine may read it"),
}
_ROLES = list(Role)
_MOVES = list(Moves)


def diff_artifacts(a: ArtifactRecord, b: ArtifactRecord) -> tuple[Difference, ...]:
    """What differs between two records, what most surely moves tokens first; empty when the digests agree."""
    found = [(_ROLES.index(role), one) for role, one in _files(a, b)]
    found += [(_ROLES.index(Role.TEMPLATE), one) for one in _templates(a, b)]
    found += [(len(_ROLES), one) for one in _image(a, b)]
    found.sort(key=lambda pair: (_MOVES.index(pair[1].moves), pair[0], pair[1].path))
    return tuple(one for _, one in found)


def _files(a: ArtifactRecord, b: ArtifactRecord) -> Iterator[tuple[Role, Difference]]:
    of_a, of_b = ({file.path: file for file in record.files} for record in (a, b))
    only_a = [file for file in a.files if file.path not in of_b]
    only_b = [file for file in b.files if file.path not in of_a]
    for file in list(only_a):
        other = next((one for one in only_b if (one.sha256, one.bytes) == (file.sha256, file.bytes)), None)
        if other is not None:
            only_a.remove(file)
            only_b.remove(other)
            yield file.role, _renamed(file, other)
    same_template = _template_sums(a) == _template_sums(b)
    for path in of_a.keys() & of_b.keys():
        if (of_a[path].sha256, of_a[path].bytes) != (of_b[path].sha256, of_b[path].bytes):
            yield of_a[path].role, _changed(of_a[path], of_b[path], same_template=same_template)
        elif of_a[path].to_json() != of_b[path].to_json():
            yield of_a[path].role, _read_otherwise(of_a[path], of_b[path])
    for file in only_a:
        yield file.role, _alone(file, "only in A", same_template=same_template)
    for file in only_b:
        yield file.role, _alone(file, "only in B", same_template=same_template)


def _renamed(file: ArtifactFile, other: ArtifactFile) -> Difference:
    return Difference(
        moves=Moves.NO,
        what=f"{file.role} renamed",
        path=file.path,
        a=shown(file.path),
        b=shown(other.path),
        meaning="the same content: it moves nothing as long as the engine finds it under its new name",
    )


def _alone(file: ArtifactFile, where: str, *, same_template: bool) -> Difference:
    moves, meaning = _BY_ROLE[file.role]
    if file.role is Role.TEMPLATE and same_template:
        moves, meaning = Moves.NO, "the other keeps the same template in another file"
    told = _told(file)
    return Difference(
        moves=moves,
        what=f"{file.role} {where}",
        path=file.path,
        a=told if where == "only in A" else None,
        b=told if where == "only in B" else None,
        meaning=meaning,
    )


def _changed(a: ArtifactFile, b: ArtifactFile, *, same_template: bool) -> Difference:
    moves, meaning = _BY_ROLE[a.role]
    values = (a.header or {}).get("values")
    if isinstance(values, str) and values == (b.header or {}).get("values"):
        moves, meaning = Moves.NO, "the same JSON values, written with other spacing or order"
    elif a.role is Role.TEMPLATE and same_template:
        moves, meaning = Moves.NO, "the same template as Jinja reads it: only its line ends differ"
    elif a.role in (Role.WEIGHT, Role.ADAPTER):
        meaning = _of_weights(a, b, meaning)
    return Difference(
        moves=moves, what=f"{a.role} changed", path=a.path, a=_told(a), b=_told(b), meaning=meaning
    )


def _read_otherwise(a: ArtifactFile, b: ArtifactFile) -> Difference:
    return Difference(
        moves=Moves.NO,
        what=f"{a.role} described otherwise",
        path=a.path,
        a=_told(a),
        b=_told(b),
        meaning="the same content; the two records were made by different versions",
    )


def _of_weights(a: ArtifactFile, b: ArtifactFile, meaning: str) -> str:
    left, right = a.header or {}, b.header or {}
    if left.get("dtypes") != right.get("dtypes"):
        return f"another precision, so every product is rounded otherwise; {meaning}"
    if (left.get("tensors"), left.get("parameters")) != (right.get("tensors"), right.get("parameters")):
        return f"another number of tensors or parameters: another model; {meaning}"
    return meaning


def _templates(a: ArtifactRecord, b: ArtifactRecord) -> Iterator[Difference]:
    of_a, of_b = _template_sums(a), _template_sums(b)
    for name in sorted(of_a.keys() | of_b.keys()):
        left, right = sorted(of_a.get(name, ())), sorted(of_b.get(name, ()))
        if left != right:
            yield Difference(
                moves=Moves.LIKELY,
                what="chat template",
                path=name,
                a=", ".join(one[:12] for one in left) or None,
                b=", ".join(one[:12] for one in right) or None,
                meaning=_BY_ROLE[Role.TEMPLATE][1],
            )


def _template_sums(record: ArtifactRecord) -> dict[str, set[str]]:
    sums: dict[str, set[str]] = {}
    for one in record.templates:
        sums.setdefault(one.name, set()).add(one.sha256)
    return sums


def _image(a: ArtifactRecord, b: ArtifactRecord) -> Iterator[Difference]:
    if dict(a.image) == dict(b.image):
        return
    left, right = next(iter(a.image.items())), next(iter(b.image.items()))
    if left[0] != right[0]:
        moves = Moves.PERHAPS
        meaning = (
            "they cannot be compared: record both with --image-digest; another image holds other kernels"
        )
    else:
        moves = Moves.LIKELY
        meaning = "another engine, other libraries or kernels: compare the environment records"
    yield Difference(
        moves=moves,
        what="runtime image",
        path="image",
        a=f"{left[0]}: {left[1]}",
        b=f"{right[0]}: {right[1]}",
        meaning=meaning,
    )


def _told(file: ArtifactFile) -> str:
    header = file.header or {}
    parts = [f"sha256 {file.sha256[:12]}", f"{file.bytes:,} bytes"]
    if "dtypes" in header:
        parts.append("+".join(header["dtypes"]))
    if "quantisation" in header:
        parts.append(str(header["quantisation"]))
    return ", ".join(parts)
