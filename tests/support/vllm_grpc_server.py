"""One real vLLM gRPC server."""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
import time
from typing import IO

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from tests.support.ports import free_port
from tests.support.vllm_server import MODEL, START_S

DTYPE = "float32"


class VllmGrpc:
    """Started when first asked for, in a minute; float32, without a prefix cache."""

    def __init__(self, python: str, model_dir: pathlib.Path) -> None:
        self._python = python
        self._model_dir = model_dir
        self._running: tuple[str, subprocess.Popen[bytes], IO[bytes]] | None = None

    @property
    def url(self) -> str:
        if self._running is None:
            self._running = self._start()
        return self._running[0]

    def stop(self) -> None:
        if self._running is None:
            return
        _, process, log = self._running
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
        self._running = None

    def _start(self) -> tuple[str, subprocess.Popen[bytes], IO[bytes]]:
        port = free_port()
        command = [self._python, "-m", "vllm.entrypoints.launchers.grpc_server"]
        command += ["--model", str(self._model_dir), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--dtype", DTYPE, "--max-model-len", "2048", "--max-num-seqs", "16"]
        command += ["--served-model-name", MODEL, "--enforce-eager", "--no-enable-prefix-caching"]
        # Its warm-up of every prefill length takes minutes on a CPU, and nothing compiles here.
        environment = {**os.environ, "SMG_VLLM_SERVICER_WARMUP": "off"}
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop(), after the process that writes it
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline_s = time.monotonic() + START_S
        while not _healthy(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                process.kill()
                process.wait()
                log.seek(0)
                tail = log.read()[-4000:].decode(errors="replace")
                log.close()
                raise AssertionError(f"vLLM's gRPC server did not start, exit {process.returncode}:\n{tail}")
            time.sleep(0.5)
        return f"http://127.0.0.1:{port}", process, log


def _healthy(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        try:
            return bool(stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest(), timeout=5).healthy)
        except grpc.RpcError:
            return False
