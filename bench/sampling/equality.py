"""Model Equality Testing (Gao, Liang & Guestrin, ICLR 2025), the package itself, in a child process.

``python -m bench.sampling.equality`` reads one JSON object a line on stdin and answers each with
``{"p": ..., "statistic": ...}``: the package's own ``run_two_sample_test`` with its Hamming kernel and its
permutation p-value. The package (and matplotlib, which it imports) lies in ``.venv-bench``; torch,
transformers and numpy, which it imports too, are this interpreter's own, so ``.venv-bench`` comes last on the
path.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_VENV = Path(__file__).resolve().parents[2] / ".venv-bench"
PACKAGE = "model-equality-testing"


class NotInstalled(Exception):  # noqa: N818 - what happened, not a fault
    """The package is not there; the message says what to run."""


class Peer:
    """The child; ask it, then close it."""

    def __init__(self) -> None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = _VENV / "lib" / version / "site-packages"
        if not (site / "model_equality_testing").is_dir():
            raise NotInstalled(
                f"{PACKAGE} is not in {_VENV.name}; `make bench` or `{_VENV.name}/bin/python -m pip install "
                "--no-deps -r requirements-bench.lock` puts it there"
            )
        own = sysconfig.get_paths()["purelib"]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "bench.sampling.equality"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((os.getcwd(), own, str(site)))},
        )

    def ask(
        self, prompts: Sequence[int], first: Any, second: Any, *, permutations: int, seed: int
    ) -> tuple[float, float]:
        """p-value and statistic of two samples, one row of padded token IDs a prompt index."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        question = {
            "prompts": list(prompts),
            "first": first,
            "second": second,
            "permutations": permutations,
            "seed": seed,
        }
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise NotInstalled(
                f"{PACKAGE} did not answer (exit {self._child.wait()}); its words are on stderr"
            )
        said = json.loads(line)
        return said["p"], said["statistic"]

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=30)
        if self._child.stdout is not None:
            self._child.stdout.close()


def main() -> int:
    import numpy as np
    import torch

    torch.set_num_threads(1)
    from model_equality_testing.algorithm import run_two_sample_test
    from model_equality_testing.distribution import CompletionSample

    for line in sys.stdin:
        asked = json.loads(line)
        prompts = np.array(asked["prompts"])
        most = int(prompts.max()) + 1
        samples = [
            CompletionSample(prompts=prompts, completions=np.array(asked[name]), m=most)
            for name in ("first", "second")
        ]
        np.random.seed(asked["seed"])
        torch.manual_seed(asked["seed"])
        p, statistic = run_two_sample_test(
            *samples, pvalue_type="permutation_pvalue", stat_type="mmd_hamming", b=asked["permutations"]
        )
        sys.stdout.write(json.dumps({"p": p, "statistic": float(statistic)}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
