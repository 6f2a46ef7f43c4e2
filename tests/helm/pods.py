"""A pod without Kubernetes: what the chart rendered, on the image's root file system, read-only, as its user.

This does by hand what a kubelet and a container runtime do: it puts the files of Secrets where the manifest
mounts them, with the modes and the group that they would have there, makes the root read-only, drops every
capability, becomes the user of the security context and runs the manifest's arguments. Another command in the
same pod is ``kubectl exec``. In place of the base image are this machine's C library and its Python, which is
mounted at /usr/local, where the image has its own. Needs root, for mounts.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.helm.charts import Manifest
from tests.support.waiting import LIMIT_S

BASE = Path(sys.base_prefix)
"""Where this machine's Python is."""
ENTRYPOINT = "/opt/forkgate/bin/forkgate"
"""The Containerfile's."""
ENVIRONMENT = {
    "PATH": "/opt/forkgate/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTHONSAFEPATH": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""The Containerfile's; a test compares them."""


def can_mount() -> bool:
    """Whether this machine lets the tests make mounts of their own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


class Pod:
    """One container of a rendered pod."""

    def __init__(
        self,
        directory: Path,
        rootfs: Path,
        pod: Manifest,
        objects: Iterable[Manifest],
        *,
        hosts: Sequence[str] = (),
    ) -> None:
        """
        Args:
            directory: the pod's own on this machine: its volumes.
            rootfs: what ``tools.rootfs`` made.
            pod: a pod template; its sidecar is run where it has one, else its first container.
            objects: where its Secrets and ConfigMaps are found.
            hosts: names that are this machine, as a cluster's DNS would know them.
        """
        spec = pod["spec"]
        self.container: Manifest = [*spec.get("initContainers", ()), *spec["containers"]][0]
        self.group = spec.get("securityContext", {}).get("fsGroup", 0)
        self.user = self.container["securityContext"]["runAsUser"]
        self.directory = directory
        self.volumes = directory / "volumes"
        self._rootfs = rootfs
        self._hosts = hosts
        self._files = {
            (one["kind"], one["metadata"]["name"]): one
            for one in objects
            if one["kind"] in ("Secret", "ConfigMap")
        }
        self.log_file = directory / "log"
        declared = {one["name"]: one for one in spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            self._fill(mount["name"], declared.get(mount["name"], {}))

    def start(self) -> subprocess.Popen[bytes]:
        """The manifest's own arguments."""
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                self._command([ENTRYPOINT, *self.container["args"]]), stdout=log, stderr=log
            )

    def execute(self, *command: str, seconds: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Another command in the same pod."""
        return subprocess.run(
            self._command(command), capture_output=True, text=True, timeout=seconds, check=False
        )

    def _fill(self, name: str, volume: dict[str, Any]) -> None:
        """One volume as a kubelet leaves it, with the pod's fsGroup."""
        where = self.volumes / name
        where.mkdir(parents=True)
        os.chown(where, 0, self.group)
        source = volume.get("secret") or volume.get("configMap")
        if source is None:  # an emptyDir, or the claim
            where.chmod(0o2777 if "emptyDir" in volume else 0o2775)
            return
        kind = "Secret" if "secret" in volume else "ConfigMap"
        found = self._files[kind, source.get("secretName", source.get("name"))]
        encoded = found.get("data", {}) if kind == "Secret" else {}
        plain = found.get("stringData", {}) if kind == "Secret" else found["data"]
        files = {key: base64.b64decode(value) for key, value in encoded.items()}
        files |= {key: value.encode() for key, value in plain.items()}
        for key, content in files.items():
            file = where / key
            file.write_bytes(content)
            os.chown(file, 0, self.group)
            file.chmod(source.get("defaultMode", 0o644))

    def _command(self, command: Sequence[str]) -> list[str]:
        root = self.directory / "root"
        root.mkdir(exist_ok=True)
        hosts = self.directory / "hosts"
        hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in ("localhost", *self._hosts)))
        at = shlex.quote(str(root))
        lines = [
            "set -e",
            f"mount -t tmpfs root {at}",
            f"cd {at}",
            "mkdir -p opt etc usr dev proc tmp var/lib/forkgate",
            # The image's own files, and below them what stands in for its base.
            f"mount --bind {shlex.quote(str(self._rootfs / 'opt'))} opt",
            f"cp -a {shlex.quote(str(self._rootfs / 'etc'))}/. etc/",
            f"cp {shlex.quote(str(hosts))} etc/hosts",
            "mount --rbind /usr usr",
            f"mount --bind {shlex.quote(str(BASE))} usr/local",
            "for d in bin lib lib64; do ln -s usr/$d $d; done",
            "mount --rbind /dev dev",
            "mount --rbind /proc proc",
        ]
        writable = []
        for mount in self.container["volumeMounts"]:
            target = shlex.quote(mount["mountPath"].removeprefix("/"))
            source = shlex.quote(str(self.volumes / mount["name"]))
            lines += [f"mkdir -p {target}", f"mount --bind {source} {target}"]
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,ro,bind {target}")
            else:
                writable.append(target)
        environment = {
            **ENVIRONMENT,
            # Of the stand-in alone: a Python that was built to live elsewhere looks for its library there.
            "LD_LIBRARY_PATH": "/usr/local/lib",
            **{one["name"]: one["value"] for one in self.container["env"]},
        }
        groups = f"--groups {self.group}" if self.group else "--clear-groups"
        become = (
            f"/usr/bin/setpriv --reuid {self.user} --regid {self.user} {groups} "
            "--no-new-privs --bounding-set=-all --inh-caps=-all"
        )
        variables = shlex.join(f"{key}={value}" for key, value in environment.items())
        lines += [
            "mount -o remount,ro,bind opt",
            "mount -o remount,ro .",
            "cd /",
            f"exec chroot {at} /usr/bin/env -i {variables} {become} {shlex.join(command)}",
        ]
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines)]
