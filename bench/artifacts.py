"""``python -m bench.artifacts [--quick] [--json] [--folder DIR]``: what hashing an artifact costs.

Two figures, each of the whole command as a user starts it, from its first instruction to its last:

- ``record_vs_sha256sum``: ``forkgate artifact record --no-cache`` over ``sha256sum`` run by ``xargs -P`` on
  the same files and the same cores. Both run in turns, in turning order, with all files in the page cache; a
  ratio is of neighbours in time, and the figure is the median of the ratios.
- ``cached_verify_s``: ``forkgate artifact verify`` of 1,000 files whose sums are all known.

For information: the hashing alone without the start of Python, and ``openssl dgst`` in the place of
``sha256sum``, which in some distributions has no use for a processor's SHA instructions.

Exit code 0: both bars hold. 1: one was missed. 2: usage. 4: something could not be measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from bench import machine
from bench.machine import BenchError
from bench.report import Bar
from bench.stats import Estimate, median_with_interval, ratios
from engines.identity.hashing import Hashed, cores, hash_files

MIB = 1 << 20
BARS = {
    "record_vs_sha256sum": Bar(
        meaning="artifact record, nothing known, over sha256sum by xargs -P", unit="×", at_most=1.2
    ),
    "cached_verify_s": Bar(
        meaning="artifact verify of 1,000 files whose sums are known", unit="s", below=1.0
    ),
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is measured."""

    shards: int
    shard_mib: int
    small_files: int
    rounds: int


FULL = Sizes(shards=8, shard_mib=128, small_files=1000, rounds=15)
QUICK = Sizes(shards=4, shard_mib=32, small_files=1000, rounds=3)


def shards(folder: pathlib.Path, count: int, size: int) -> pathlib.Path:
    """Safetensors of one tensor each, numbered as a hub's; the bytes are random, so no disk can fold them."""
    folder.mkdir()
    for number in range(1, count + 1):
        tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
        header = json.dumps({f"layer.{number}": tensor}).encode()
        with open(folder / f"model-{number:05}-of-{count:05}.safetensors", "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for start in range(0, size, MIB):
                file.write(os.urandom(min(MIB, size - start)))
    return folder


def children_cpu_s() -> float:
    """CPU that the children which have ended have used: a busy machine stretches time, and hardly this."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def command(*arguments: object, cache: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """``forkgate artifact ...`` with a cache of the bench's own."""
    done = subprocess.run(
        [sys.executable, "-m", "forkgate", "artifact", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    if done.returncode != 0:
        raise BenchError(f"forkgate artifact {arguments[0]} ended with {done.returncode}: {done.stderr}")
    return done


def peer(program: list[str], files: list[str]) -> str:
    """The sums of ``files`` by another program, as many at once as there are cores."""
    done = subprocess.run(
        ["xargs", "-0", "-P", str(cores()), "-n", "1", *program],
        input="\0".join(files),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"{program[0]} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def check_sums(files: list[str], folder: pathlib.Path, cache: pathlib.Path) -> None:
    """Both must have found the same, or the race was none. It also brings the files into the page cache."""
    theirs = {line.split()[1]: line.split()[0] for line in peer(["sha256sum"], files).splitlines()}
    record = json.loads(command("record", folder, "--json", "--no-cache", cache=cache).stdout)
    ours = {str(folder / file["path"]): file["sha256"] for file in record["files"]}
    if ours != theirs:
        raise BenchError("forkgate and sha256sum give these files different sums")


def in_turns(rounds: int, runs: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Each of ``runs`` once a round, in turning order; seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        names = list(runs) if number % 2 == 0 else list(reversed(runs))
        for name in names:
            seconds[name].append(timed(runs[name]))
    return seconds


def record_vs_peers(
    work: pathlib.Path, sizes: Sizes, say: Callable[[str], None]
) -> tuple[Estimate, dict[str, object]]:
    say(f"writing {sizes.shards} files of {sizes.shard_mib} MiB")
    folder = shards(work / "model", sizes.shards, sizes.shard_mib * MIB)
    cache = work / "cache"
    files = sorted(str(path) for path in folder.iterdir())
    check_sums(files, folder, cache)

    def alone() -> None:
        if not all(isinstance(one, Hashed) for one in hash_files(files).values()):
            raise BenchError("a file could not be hashed")

    runs: dict[str, Callable[[], object]] = {
        "forkgate": lambda: command("record", folder, "--json", "--no-cache", cache=cache),
        "sha256sum": lambda: peer(["sha256sum"], files),
        "hashing_alone": alone,
    }
    if shutil.which("openssl"):
        runs["openssl"] = lambda: peer(["openssl", "dgst", "-sha256", "-r"], files)
    say(f"{sizes.rounds} rounds of {', '.join(runs)} on {cores()} cores")
    seconds = in_turns(sizes.rounds, runs)
    detail: dict[str, object] = {
        "seconds": seconds,
        "gib": sizes.shards * sizes.shard_mib / 1024,
        "cores": cores(),
    }
    told = {"hashing_alone_vs_sha256sum": ("hashing_alone", "sha256sum")}
    if "openssl" in runs:
        told |= {
            "record_vs_openssl": ("forkgate", "openssl"),
            "hashing_alone_vs_openssl": ("hashing_alone", "openssl"),
        }
    for name, (ours, theirs) in told.items():
        one = median_with_interval(ratios(seconds[ours], seconds[theirs]))
        detail[name] = [one.value, one.low, one.high]
    shutil.rmtree(folder)
    return median_with_interval(ratios(seconds["forkgate"], seconds["sha256sum"])), detail


def cached_verify(
    work: pathlib.Path, sizes: Sizes, say: Callable[[str], None]
) -> tuple[Estimate, dict[str, object]]:
    say(f"writing {sizes.small_files} files")
    folder = shards(work / "many", sizes.small_files, 16 << 10)
    cache, record = work / "cache", work / "many.json"
    command("record", folder, "-o", record, cache=cache)
    # A file that is younger than its clock's tick is not kept, so the first runs may hash a few again.
    for _ in range(5):
        if ": 0 hashed in" in command("verify", record, folder, cache=cache).stderr:
            break
    else:
        raise BenchError("sums are not kept from one run to the next")
    hashed: list[str] = []

    def verify() -> None:
        hashed.append(command("verify", record, folder, cache=cache).stderr)

    say(f"{sizes.rounds} rounds of verify")
    before_s = children_cpu_s()
    seconds = [timed(verify) for _ in range(sizes.rounds)]
    cpu_s = (children_cpu_s() - before_s) / sizes.rounds
    if not all(": 0 hashed in" in told for told in hashed):
        raise BenchError("a verify hashed a file whose sum was known")
    return median_with_interval(seconds), {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "files": sizes.small_files,
    }


def main() -> int:
    """Run the bench and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.artifacts", description="What hashing an artifact costs."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line on stdout")
    parser.add_argument("--quick", action="store_true", help="seconds; the numbers say nothing")
    parser.add_argument("--folder", help="where the files are written; a temporary folder by default")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else FULL

    def say(text: str) -> None:
        sys.stderr.write(f"bench.artifacts: {text}\n")

    about = machine.description()
    if os.getloadavg()[0] > cores() / 2:
        say(f"this machine is busy with something else (load average {os.getloadavg()[0]:.1f})")
    found: dict[str, tuple[Estimate, dict[str, object]]] = {}
    try:
        for program in ("xargs", "sha256sum"):
            if shutil.which(program) is None:
                raise BenchError(f"{program} is not installed: it is what forkgate is measured against")
        with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="forkgate-bench-") as work:
            found["record_vs_sha256sum"] = record_vs_peers(pathlib.Path(work), sizes, say)
            found["cached_verify_s"] = cached_verify(pathlib.Path(work), sizes, say)
    except (BenchError, OSError) as error:
        say(str(error))
        return 4
    holds = {key: bool(BARS[key].met_by(one.value)) for key, (one, _) in found.items()}
    for key, (one, detail) in found.items():
        bar = BARS[key]
        word = "holds" if holds[key] else "missed"
        sys.stderr.write(
            f"{key}  {one.value:.3f} {bar.unit}  ({one.low:.3f} - {one.high:.3f})  {bar.words}  {word}  "
            f"{bar.meaning}\n"
        )
        for name, value in detail.items():
            if "_vs_" in name and isinstance(value, list):
                sys.stderr.write(f"  {name}  {value[0]:.3f} ×  ({value[1]:.3f} - {value[2]:.3f})\n")
            elif name == "cpu_s":
                sys.stderr.write(f"  CPU of one run  {value:.3f} s\n")
    if arguments.json:
        document: dict[str, object] = {key: round(one.value, 4) for key, (one, _) in found.items()}
        document["holds"] = holds
        document["bars"] = {key: bar.words for key, bar in BARS.items()}
        document["intervals"] = {
            key: [round(one.low, 4), round(one.high, 4)] for key, (one, _) in found.items()
        }
        document["detail"] = {key: detail for key, (_, detail) in found.items()}
        document["about"] = about | {"quick": arguments.quick}
        print(json.dumps(document))
    return 0 if all(holds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
