"""The fields of an environment record: what each is, how likely it moves tokens, and why.

One table, read from the top: a record holds every field that has no ``*`` in its name (known, or with the
reason why not), :mod:`engines.identity.environment_diff` lists differences in this order, and
docs/environment-record.md must name every row.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Mapping
from typing import Any

from engines.identity.record import UnknownField

LIKELY = "likely"
PERHAPS = "perhaps"
RARELY = "rarely"
MOVES = (LIKELY, PERHAPS, RARELY)
"""How likely a difference moves tokens; in this order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One row. ``*`` in ``name`` stands for a number or the rest of a name: such fields may be absent.

    ``otherwise`` is the reason in a record where nothing told the field.
    """

    name: str
    moves: str
    why: str
    otherwise: str = "nothing that was asked tells it"


_ENGINE = "neither the engine nor its command line tells it: its default stands, and only it knows which"
_NOT_SET = "no endpoint of the engine tells it and no flag sets it"
_TORCH = "only torch itself tells it, and torch was not asked (--torch)"
_NO_LIBRARY = "no installed package and no loaded library tells it"
_NO_GPU = "no NVIDIA driver is reached from here"
_PROCESS = "the process was not looked at"

FIELDS: tuple[Field, ...] = (
    Field("artifact.digest", LIKELY, "other weights, tokenizer or template: compare the artifact records",
          "told by an engine that records its own artifact; else see `forkgate artifact record`"),
    Field("precision.dtype", LIKELY, "every weight, product and sum is rounded to this type", _ENGINE),
    Field("precision.matmul", LIKELY, "products can be summed in another order or width", _ENGINE),
    Field("precision.quantization", LIKELY, "quantized weights are other numbers, run by other kernels",
          _ENGINE),
    Field("precision.kv_cache_dtype", LIKELY, "keys and values are rounded to it at every step", _ENGINE),
    Field("precision.tf32", LIKELY, "TF32 cuts float32 products to 10 bits of mantissa", _TORCH),
    Field("attention.backend", LIKELY, "another kernel adds up attention in another order", _ENGINE),
    Field("attention.cascade", PERHAPS, "a shared prefix is attended to once, and merged", _ENGINE),
    Field("engine.name", LIKELY, "another engine has kernels, scheduler and sampler of its own",
          "no command line and no endpoint of an engine that is known here was seen"),
    Field("engine.version", LIKELY, "kernels, defaults and scheduling change between versions",
          "no endpoint and no package metadata of the engine tells it"),
    Field("engine.commit", LIKELY, "builds of one version differ by the commit they were made from",
          "the installed engine does not tell the commit that it was built from"),
    Field("engine.build", LIKELY, "build parameters choose the kernels that exist at all",
          "the engine does not tell how it was built"),
    Field("engine.device", LIKELY, "another kind of device has other kernels", _ENGINE),
    Field("engine.load_format", LIKELY, "weights that were loaded in another way, or are dummies", _ENGINE),
    Field("engine.model_overrides", LIKELY, "an overridden model configuration is another model", _ENGINE),
    Field("speculative", LIKELY, "drafting changes the batch shape of the verifying pass, and who draws",
          _NOT_SET),
    Field("determinism.batch_invariant", LIKELY, "batch-invariant kernels trade speed for one order of sums",
          _NOT_SET),
    Field("deterministic", LIKELY, "a deterministic mode runs other kernels, and other batches", _NOT_SET),
    Field("determinism.settings", LIKELY, "strict settings choose kernels, precision and seeds",
          "the engine puts none on, or does not tell them"),
    Field("parallel.tensor", LIKELY, "sums split over devices are added in another order", _ENGINE),
    Field("parallel.pipeline", PERHAPS, "layers on other devices; micro-batches have other shapes", _ENGINE),
    Field("parallel.data", PERHAPS, "requests meet other neighbours in their batch", _ENGINE),
    Field("parallel.expert", LIKELY, "experts are computed and combined in another order", _ENGINE),
    Field("parallel.context", LIKELY, "attention over a split context is merged in another order", _ENGINE),
    Field("parallel.custom_all_reduce", LIKELY, "another all-reduce adds in another order", _ENGINE),
    Field("batch.max_sequences", LIKELY, "larger batches choose other kernels and tile shapes", _ENGINE),
    Field("batch.max_tokens", LIKELY, "where a prompt is cut decides the shapes of its prefill", _ENGINE),
    Field("prefill.chunked", LIKELY, "a prompt in pieces is summed in other shapes than in one", _ENGINE),
    Field("prefill.chunk_tokens", LIKELY, "the size of the pieces is the shape of the sums", _ENGINE),
    Field("cache.prefix", LIKELY, "a warm prefix skips the prefill that a cold one computes anew", _ENGINE),
    Field("cache.block_size", PERHAPS, "paged attention walks, and adds, block by block", _ENGINE),
    Field("batch.max_model_len", PERHAPS, "some kernels and rope scalings are chosen by the longest context",
          _ENGINE),
    Field("batch.scheduling", PERHAPS, "another order of requests makes other batches", _ENGINE),
    Field("batch.async", PERHAPS, "scheduling ahead of the results makes other batches", _ENGINE),
    Field("graphs.cuda", PERHAPS, "captured graphs pad batches to fixed sizes: other shapes, other sums",
          _ENGINE),
    Field("graphs.compilation", LIKELY, "compiled and fused kernels round at other places", _ENGINE),
    Field("sampler.order", LIKELY, "filters in another order leave other candidates", _ENGINE),
    Field("sampler.backend", LIKELY, "another sampler draws another token from the same numbers", _ENGINE),
    Field("sampler.logprobs_mode", PERHAPS, "logprobs before and after processors do not compare", _ENGINE),
    Field("sampler.defaults", LIKELY, "requests that leave a parameter out get another value", _ENGINE),
    Field("sampler.seed", LIKELY, "requests without a seed of their own draw otherwise", _ENGINE),
    Field("engine.flag.*", PERHAPS, "a setting of the engine: it may choose kernels or shapes"),
    Field("engine.flags_unlisted", PERHAPS, "set, and not known here: nothing can be said of what it does",
          "no command line of an engine was read"),
    Field("variable.*", PERHAPS, "a variable by which libraries choose kernels, algorithms or threads"),
    Field("variables", PERHAPS, "variables that move numbers were not all seen", _PROCESS),
    Field("gpu.count", LIKELY, "another number of GPUs is split over otherwise", _NO_GPU),
    Field("gpu.*.name", LIKELY, "another GPU has other units, tile sizes and kernels"),
    Field("gpu.*.compute_capability", LIKELY, "libraries choose kernels by it"),
    Field("gpu.*.mig", LIKELY, "a slice has fewer processors: work is split, and added, otherwise"),
    Field("gpu.*.cores", PERHAPS, "work is split by the number of processors"),
    Field("cublas.version", LIKELY, "its heuristics choose the kernel of each product", _NO_LIBRARY),
    Field("cudnn.version", LIKELY, "its heuristics choose attention and convolution kernels", _NO_LIBRARY),
    Field("cuda.torch", LIKELY, "torch was built for it, with the libraries that belong to it",
          "no installed torch was found"),
    Field("cuda.runtime", PERHAPS, "run-time compiled kernels come from its compiler", _NO_LIBRARY),
    Field("cuda.toolkit", PERHAPS, "kernels compiled on the spot come from this toolkit",
          "no CUDA toolkit is installed beside the engine"),
    Field("nccl.version", LIKELY, "it chooses how reductions over GPUs are added", _NO_LIBRARY),
    Field("nccl.algorithm", LIKELY, "ring, tree and NVLS add in different orders",
          "NCCL_ALGO is not set: NCCL chooses by size and topology, and tells it only in its log"),
    Field("nccl.protocol", PERHAPS, "protocols cut messages at other places",
          "NCCL_PROTO is not set: NCCL chooses by size and topology, and tells it only in its log"),
    Field("topology.links", PERHAPS, "NCCL chooses its algorithm by how the GPUs are connected", _NO_GPU),
    Field("gpu.*.nvlink", PERHAPS, "NCCL chooses its algorithm by how the GPUs are connected"),
    Field("cpu.model", PERHAPS, "kernels are chosen by the processor; on a CPU engine it computes it all",
          "/proc/cpuinfo names none"),
    Field("cpu.instruction_sets", PERHAPS, "wider vectors add in another order; on a CPU engine it is likely",
          "/proc/cpuinfo lists none"),
    Field("cpu.capability", PERHAPS, "the vector code path that torch took on this processor", _TORCH),
    Field("cpu.threads", PERHAPS, "more threads split sums otherwise; on a CPU engine it is likely",
          "neither a flag, nor OMP_NUM_THREADS, nor torch tells it: libraries take one a core"),
    Field("cpu.threads_mkl", PERHAPS, "MKL splits products by it", "MKL_NUM_THREADS is not set"),
    Field("cpu.allowed", PERHAPS, "libraries start so many threads where nobody sets a number", _PROCESS),
    Field("cpu.architecture", LIKELY, "another instruction set has other kernels", "the system tells none"),
    Field("gpu.driver", PERHAPS, "it compiles PTX for GPUs newer than the libraries", _NO_GPU),
    Field("cuda.driver", PERHAPS, "the newest CUDA that the driver speaks; it compiles PTX", _NO_GPU),
    Field("python.packages.*", PERHAPS, "a library that computes, tokenizes, renders or samples"),
    Field("container.image", PERHAPS, "another image holds other libraries: see the fields it changes",
          "not given, and no file of a container runtime tells it"),
    Field("torch.git", PERHAPS, "builds of one torch version differ by their commit",
          "no installed torch was found"),
    Field("torch.deterministic", PERHAPS, "deterministic algorithms are other kernels", _TORCH),
    Field("torch.threads_interop", RARELY, "operators side by side do not share sums", _TORCH),
    Field("compiler.torch", PERHAPS, "torch's CPU kernels were compiled with it", _TORCH),
    Field("compiler.host", PERHAPS, "kernels generated at run time are compiled with it",
          "no C++ compiler was found beside the engine"),
    Field("os.libc", PERHAPS, "its exp and log are chosen by processor and version",
          "the C library does not tell its version"),
    Field("python.version", RARELY, "hash order and parsing seldom reach the numbers",
          "the interpreter of the engine does not tell its version"),
    Field("python.implementation", RARELY, "another interpreter parses and orders otherwise", _PROCESS),
    Field("python.packages_sha256", RARELY, "some library differs that is not named above",
          "no metadata of installed packages was found"),
    Field("compiler.python", RARELY, "the interpreter's own compiler computes no logits", _PROCESS),
    Field("gpu.*.memory_bytes", RARELY, "less memory preempts, and batches, otherwise"),
    Field("gpu.*.ecc", RARELY, "it repairs bits and changes no sum"),
    Field("gpu.*.power_limit_w", RARELY, "slower steps batch requests otherwise under load"),
    Field("gpu.*.application_clocks_mhz", RARELY, "slower steps batch requests otherwise under load"),
    Field("os.name", RARELY, "it brings the C library and compilers that are named above",
          "/etc/os-release tells none"),
    Field("os.kernel", RARELY, "the kernel schedules threads and computes nothing", "the system tells none"),
)  # fmt: skip
_UNLISTED = Field("*", PERHAPS, "a field that this version does not know: nothing can be said of it")
_EXACT = {row.name: (place, row) for place, row in enumerate(FIELDS) if "*" not in row.name}
_WILD = tuple(
    (place, row, re.compile(fnmatch.translate(row.name)))
    for place, row in enumerate(FIELDS)
    if "*" in row.name
)
_ABSENCE = {
    "engine.flag.": "engine.flags_unlisted",
    "variable.": "variables",
    "gpu.": "gpu.count",
    "python.packages.": "python.packages_sha256",
}
"""Where fields of a group are absent because the group was not seen, this one says so."""


def row_of(name: str) -> tuple[int, Field]:
    """A field's place in the table and its row; fields that are not in it come last."""
    if name in _EXACT:
        return _EXACT[name]
    return next(
        ((place, row) for place, row, pattern in _WILD if pattern.match(name)), (len(FIELDS), _UNLISTED)
    )


def complete(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, and every other one of the table with the reason why it is unknown."""
    missing = {row.name: UnknownField(row.otherwise) for row in FIELDS if "*" not in row.name}
    return {**missing, **fields}


def unseen(fields: Mapping[str, Any], name: str) -> UnknownField | None:
    """Why an absent field may be unseen rather than not there; None where its group was looked at."""
    for prefix, teller in _ABSENCE.items():
        if name.startswith(prefix) and name != teller:
            told = fields.get(teller, UnknownField("the record has no such field"))
            return told if isinstance(told, UnknownField) else None
    return None if name in fields else UnknownField("the record has no such field")
