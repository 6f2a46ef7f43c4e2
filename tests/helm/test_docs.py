"""docs/kubernetes.md says what the chart and the command line do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helm.charts import CHART, ROOT, configuration, read_yaml, render, rendered

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_values_of_the_page_render_to_a_configuration_that_forkgate_takes(tmp_path: Path) -> None:
    (values,) = read_yaml(blocks("yaml")[0])
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).touch()
    for part in ("judge", "edge"):
        file = tmp_path / f"{part}.yaml"
        file.write_text(configuration(render(values), part).replace("/etc/forkgate/link", str(tmp_path)))
        done = subprocess.run(
            [sys.executable, "-m", "forkgate", "check-config", str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_a_mirrored_request_is_five_commands_away() -> None:
    commands = re.findall(r"^\$ (.*?)(?<!\\)$", blocks("console")[0], re.MULTILINE | re.DOTALL)
    assert len(commands) == 5
    assert commands[0].startswith("helm/link-certificates ")
    assert (ROOT / commands[0].split()[0]).stat().st_mode & 0o111


@pytest.mark.parametrize(
    "words", sorted(set(re.findall(r"forkgate-judge-0 -- (forkgate [a-z -]+?) (?:a100|--|`|$)", PAGE)))
)
def test_every_command_of_the_page_exists(words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words.split(), "--help"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Usage" in done.stdout) == (0, True), done.stderr


def test_objects_and_values_that_the_page_names_are_there() -> None:
    names = {one["metadata"]["name"] for one in (*rendered("first"), *rendered("full"))}
    assert {"forkgate-judge-link", "forkgate-edge-link"} <= names
    assert "state-forkgate-judge-0" in PAGE
    table = (CHART / "VALUES.md").read_text()
    for name in re.findall(r"`((?:link|edge|admin|gateway|judge|networkPolicy|metrics)\.[A-Za-z.]+)`", PAGE):
        # Keys of forkgate's own configuration look alike: judge.grace_s has an underscore.
        assert f"`{name}" in table or "_" in name, name


def test_what_the_page_calls_the_chart_s_own_versions_is_so() -> None:
    assert 'kubeVersion: ">=1.30.0-0"' in (CHART / "Chart.yaml").read_text()
    tested = (Path(__file__).parent / "test_manifests.py").read_text()
    for version in re.findall(r"schemas of ([\d., and]+)", PAGE)[0].replace("and", ",").split(","):
        assert f'"{version.strip(" .,")}"' in tested
