"""Captures in processes of their own: by the command, and by the zipapp where nothing else is."""

from __future__ import annotations

import ast
import io
import json
import os
import pathlib
import subprocess
import sys
import zipfile
from typing import Any

import pytest

from engines.identity.collect import capture
from engines.identity.record import Identity, UnknownField, from_json, load
from tests.support.canned_http import canned
from tools import capture_zipapp

SECRETS = {
    "HF_TOKEN": "hf_supersecret12345",
    "VLLM_API_KEY": "sk-supersecret12345",
    "NCCL_ALGO": "hf_supersecret12345",
    "AWS_SECRET_ACCESS_KEY": "supersecret",
}


def forkgate(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forkgate", "environment", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **variables}, check=False
    )


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    file = tmp_path_factory.mktemp("record") / "a.json"
    done = forkgate("capture", "-o", str(file), PORT="1", VLLM_PORT="1", CUDA_VISIBLE_DEVICES="0", **SECRETS)
    assert done.returncode == 0, done.stderr
    return file


def altered(record: pathlib.Path, tmp_path: pathlib.Path, **fields: Any) -> str:
    told = load(record)
    file = tmp_path / "altered.json"
    names = {name.replace("__", "."): value for name, value in fields.items()}
    file.write_text(json.dumps(Identity(fields={**told.fields, **names}).to_json()))
    return str(file)


def test_the_same_environment_started_twice_has_one_digest(
    record: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    again = tmp_path / "b.json"
    done = forkgate(
        "capture", "-o", str(again), "--json", PORT="2", VLLM_PORT="2", CUDA_VISIBLE_DEVICES="1", **SECRETS
    )
    assert json.loads(done.stdout)["digest"] == load(record).digest == load(again).digest
    assert forkgate("diff", str(record), str(again)).returncode == 0


def test_a_variable_that_moves_numbers_moves_the_digest(record: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "b.json"
    forkgate("capture", "-o", str(other), OMP_NUM_THREADS="3", **SECRETS)
    done = forkgate("diff", str(record), str(other), "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert [one["field"] for one in told["differences"]] == ["variable.OMP_NUM_THREADS"]
    assert [one["field"] for one in told["unknown"]] == ["cpu.threads"]


def test_no_secret_enters_a_record(record: pathlib.Path) -> None:
    assert "supersecret" not in record.read_text()
    told = load(record)
    assert isinstance(told.fields["variable.NCCL_ALGO"], UnknownField)


def test_every_field_is_known_or_says_why(record: pathlib.Path) -> None:
    told = load(record)
    for name in ("cpu.model", "cpu.allowed", "os.kernel", "python.version", "python.packages_sha256"):
        assert not isinstance(told.fields[name], UnknownField)
    assert all(value.reason for value in told.fields.values() if isinstance(value, UnknownField))
    assert told.about["packages"]["pytest"]


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"precision__dtype": "float16"}, 3, "not compared, unknown on a side"),
        ({"os__kernel": "another"}, 1, "RARELY   os.kernel"),
        ({}, 0, "equal"),
    ],
)
def test_diff_says_what_it_found_by_its_exit_status(
    record: pathlib.Path, tmp_path: pathlib.Path, change: dict[str, Any], status: int, word: str
) -> None:
    done = forkgate("diff", str(record), altered(record, tmp_path, **change))
    assert (done.returncode, done.stderr) == (status, "")
    assert word in done.stdout


def test_show_checks_and_prints(record: pathlib.Path) -> None:
    done = forkgate("show", str(record))
    assert done.returncode == 0
    assert done.stdout.startswith(load(record).digest)
    assert "cpu.model" in done.stdout
    assert from_json(json.loads(forkgate("show", str(record), "--json").stdout)) == load(record)


def test_a_record_from_elsewhere_writes_nothing_to_the_terminal(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "hostile.json"
    hostile = Identity(
        fields={"engine.name": "\x1b[2Jx", "cuda.driver": UnknownField("\x1b[2J"), "a": {"k": "\x9b2J"}},
        about={"captured_at": "\x1b[2J", "notes": ["\x1b[2J"]},
    )
    file.write_text(json.dumps(hostile.to_json()))
    for done in (forkgate("show", str(file)), forkgate("diff", str(file), altered(file, tmp_path, a=1))):
        assert "\x1b" not in done.stdout
        assert "\x9b" not in done.stdout


def test_a_tampered_record_is_refused(record: pathlib.Path, tmp_path: pathlib.Path) -> None:
    document = json.loads(record.read_text())
    document["fields"]["os.kernel"] = "another"
    file = tmp_path / "tampered.json"
    file.write_text(json.dumps(document))
    for done in (forkgate("show", str(file)), forkgate("diff", str(record), str(file))):
        assert done.returncode == 2
        assert "it was changed after it was made" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("show", "gone.json"), 2, "gone.json"),
        (("capture", "--pid", "4194304"), 2, "there is no such process here"),
        (("capture", "--url", "nowhere"), 2, "give http://HOST:PORT"),
        (("capture", "--url", "http://127.0.0.1:1"), 4, "is the engine up"),
        (("capture", "--image-digest", "repo:latest"), 2, "is no image digest"),
        (("capture", "--api-key-env", "NO_SUCH_VARIABLE"), 2, "the variable holds no key"),
        (("capture", "-o", "/dev/null/x"), 4, "the record cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: tuple[str, ...], status: int, message: str) -> None:
    done = forkgate(*arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_engine_says_of_itself_goes_first() -> None:
    made = capture(own={"engine.name": "vllm", "cpu.threads": 7, "precision.tf32": UnknownField("mine")})
    assert made.fields["cpu.threads"] == 7
    assert made.about["sources"]["cpu.threads"] == "engine"
    assert made.fields["precision.tf32"] == UnknownField("mine")


def test_beside_an_engine_that_serves_its_record_its_digest_stands() -> None:
    own = Identity(fields={"engine.name": "vllm", "cpu.model": UnknownField("not looked at")})
    with canned({"/forkgate/identity": own.to_json()}) as url:
        made = capture(url=url, pid=os.getpid())
    assert made.digest == own.digest
    assert any(note.startswith("cpu.model: unknown to the engine itself") for note in made.about["notes"])


# -- the zipapp -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    file = tmp_path_factory.mktemp("zipapp") / "forkgate-capture.pyz"
    file.write_bytes(capture_zipapp.build())
    return file


def alone(zipapp: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In an empty folder, with no site packages, no user packages and no variables of Python's."""
    folder = zipapp.parent / "empty"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-I", "-S", str(zipapp), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={"PATH": "/usr/bin:/bin"}, check=False
    )


def test_the_zipapp_is_the_same_bytes_each_time(zipapp: pathlib.Path) -> None:
    assert capture_zipapp.build() == zipapp.read_bytes()
    with zipfile.ZipFile(zipapp) as archive:
        names = archive.namelist()
    assert names == sorted(names)
    assert {"__main__.py", "engines/__init__.py", "engines/identity/collect_gpu.py"} <= set(names)
    assert not [name for name in names if "artifact" in name or "hash" in name]


def test_the_zipapp_is_python_3_10_and_standard_library(zipapp: pathlib.Path) -> None:
    with zipfile.ZipFile(zipapp) as archive:
        for name in archive.namelist():
            tree = ast.parse(archive.read(name), name, feature_version=(3, 10))
            for node in ast.walk(tree):
                assert not (isinstance(node, ast.Attribute) and node.attr in ("StrEnum", "UTC", "tomllib"))
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    top = node.module.partition(".")[0]
                    assert top == "engines" or top in sys.stdlib_module_names
                if isinstance(node, ast.Import):
                    assert all(one.name.partition(".")[0] in sys.stdlib_module_names for one in node.names)


def test_the_zipapp_runs_alone(zipapp: pathlib.Path) -> None:
    done = alone(zipapp, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = from_json(json.loads(done.stdout))
    assert not isinstance(told.fields["cpu.model"], UnknownField)
    assert alone(zipapp, "-o", "a.json").returncode == 0
    assert load(zipapp.parent / "empty" / "a.json").digest == told.digest


def test_the_zipapp_loads_nothing_from_outside(zipapp: pathlib.Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(zipapp)!r}); import engines.identity.capture_command as c; "
        "c.main(['-o', '/dev/null/x']); "
        "print(sorted({m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    standard = (str(pathlib.Path(os.__file__).parent), str(zipapp))
    for file in ast.literal_eval(done.stdout):
        assert file.startswith(standard)
        assert "site-packages" not in file


def test_the_zipapp_reads_a_process_and_an_endpoint(zipapp: pathlib.Path) -> None:
    with canned({"/metrics": "# HELP x\nvllm:x 1\n", "/version": {"version": "0.32.0"}}) as url:
        done = alone(zipapp, "--pid", str(os.getpid()), "--url", url)
    fields = json.loads(done.stdout)["fields"]
    assert (fields["engine.name"], fields["engine.version"]) == ("vllm", "0.32.0")
    assert fields["python.packages.numpy"]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--pid", "4194304"), 2),
        (("--url", "http://127.0.0.1:1"), 4),
        (("-o", "/dev/null/x"), 4),
        (("--what",), 2),
    ],
)
def test_the_zipapp_says_what_is_wrong(zipapp: pathlib.Path, arguments: tuple[str, ...], status: int) -> None:
    done = alone(zipapp, *arguments)
    assert done.returncode == status
    assert "forkgate-capture" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_old_python_is_told_so() -> None:
    archive = zipfile.ZipFile(io.BytesIO(capture_zipapp.build()))
    source = archive.read("__main__.py")
    ast.parse(source, feature_version=(3, 4))  # it must get as far as saying it
    assert b"needs Python 3.10 or newer" in source
