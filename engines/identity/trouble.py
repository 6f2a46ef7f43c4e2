"""What goes wrong with files, in words: which file, what is wrong with it, and the way out."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

_SHOWN = 20
"""Problems that a message lists; the rest are counted."""


class ArtifactError(Exception):
    """Base of what this package's artifact half raises. ``problems`` are whole sentences, one a file."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        more = len(self.problems) - _SHOWN
        super().__init__(
            "\n".join([*self.problems[:_SHOWN], *([f"... and {more} more"] if more > 0 else [])])
        )


class UnreadableFiles(ArtifactError):  # noqa: N818
    """Files that could not be read, or did not hold still: nothing can be said of them."""


class DamagedArtifact(ArtifactError):  # noqa: N818
    """The files can be read and are no whole artifact: a truncated file, a shard that is not there."""


class NoArtifact(ArtifactError):  # noqa: N818
    """The path names no artifact; or several, of which one must be chosen."""


class BadRecord(ArtifactError):  # noqa: N818
    """A record that is none, or was changed after it was made."""


def shown(path: str | os.PathLike[str]) -> str:
    """A path for a message or a table: one line, printable, whatever bytes its name is made of."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def unreadable(path: str | os.PathLike[str], error: OSError) -> str:
    """Why a file could not be read and what to do about it."""
    name = shown(path)
    if isinstance(error, FileNotFoundError):
        if os.path.islink(path):
            return (
                f"{name}: a link to {shown(os.readlink(path))}, which is not there: finish the download, "
                "or remove the link"
            )
        return f"{name}: vanished while it was looked at: run this again when nothing writes there any more"
    if isinstance(error, PermissionError):
        return f"{name}: may not be read by this user: give it read permission, or run as a user who has it"
    if error.errno == errno.ELOOP:
        return f"{name}: a link that leads back to itself: remove it"
    return f"{name}: cannot be read: {error.strerror or error}"


def special(path: str | os.PathLike[str], mode: int) -> str:
    """What to say of something that is neither a file nor a folder."""
    kinds = (
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISDIR, "a folder"),
    )
    kind = next((name for test, name in kinds if test(mode)), "no plain file")
    return f"{shown(path)}: {kind}, and an artifact is made of plain files: move it elsewhere"


def changed(path: str | os.PathLike[str], how: str) -> str:
    """A file that did not hold still."""
    return f"{shown(path)}: changed while it was hashed ({how}): run this again when nothing writes to it"
