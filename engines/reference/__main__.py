"""``python -m engines.reference --model DIR``: the reference engine as a process.

Options, model folder and port are checked before torch is imported, so that a mistake shows at once.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import socket
import sys
from collections.abc import Sequence

from engines.reference.options import DType, EngineServerOptions, Matmul


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after SIGTERM or SIGINT, 1 when the engine failed or refuses to serve, 2 bad options."""
    parsed = _parser().parse_args(argv)
    try:
        options = EngineServerOptions(**vars(parsed))
    except ValueError as error:
        return _fail(str(error))
    if not (pathlib.Path(options.model_dir) / "config.json").is_file():
        return _fail(f"--model {options.model_dir}: there is no config.json in it")
    if options.deterministic:
        _restart(options, sys.argv[1:] if argv is None else argv)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # Bound now, so that a port in use is found before the model is loaded; listening comes with serving.
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((options.host, options.port))
        except OSError as error:
            return _fail(f"--host {options.host} --port {options.port}: {error.strerror or error}")
        return _run(options, bound)


def _run(options: EngineServerOptions, bound: socket.socket) -> int:
    import uvloop

    from engines.reference import deterministic, model
    from engines.reference.process import serve

    try:
        if options.deterministic:
            deterministic.put_on(options)
        loaded = model.load(options)
        if options.deterministic:
            loaded = deterministic.checked(loaded, options)
    except (model.UnsupportedModel, OSError) as error:
        return _fail(str(error))
    except deterministic.RefusesToServe as error:
        _fail(f"--deterministic: refuses to serve {options.model_dir}:\n{error}")
        return 1
    name = options.served_model_name or pathlib.Path(options.model_dir).resolve().name
    return uvloop.run(serve(options, loaded, name, bound))


def _restart(options: EngineServerOptions, arguments: Sequence[str]) -> None:
    """Become a process whose environment was right from the start: hashes and cuBLAS read it once."""
    from engines.reference.deterministic import variables

    missing = variables(options)
    if missing:
        command = [sys.executable, "-m", "engines.reference", *arguments]
        os.execve(sys.executable, command, {**os.environ, **missing})  # noqa: S606


def _fail(message: str) -> int:
    print(f"forkgate engine: {message}", file=sys.stderr)  # noqa: T201
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forkgate engine",
        description="A reference engine: one model, torch and transformers, in one process.",
    )
    parser.add_argument("--model", dest="model_dir", required=True, help="folder of the model")
    parser.add_argument("--served-model-name", help="name that clients ask for; default: the folder's name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=0, help="0: the kernel chooses; the URL is printed as JSON"
    )
    parser.add_argument("--dtype", type=DType, choices=list(DType), default=DType.FLOAT32)
    parser.add_argument(
        "--matmul",
        type=Matmul,
        choices=list(Matmul),
        default=Matmul.AUTO,
        help="half-precision products on a CPU: torch's own, or float32 kernels over half-precision values",
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 and its like")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads inside one operator")
    parser.add_argument("--max-batch", type=int, default=8, help="requests that share a forward pass at most")
    parser.add_argument("--max-model-len", type=int, default=2048, help="prompt and output tokens at most")
    parser.add_argument("--max-waiting", type=int, default=1024, help="requests that may wait for a place")
    parser.add_argument("--max-logprobs", type=int, default=50)
    parser.add_argument("--prefill-chunk", type=int, default=512, help="prompt tokens read at once")
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="strict settings, a forward pass for each request; serves only a model that passes the audit",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="with --deterministic: of all generators and seedless requests"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
