"""The Docker engine of WINDLASS_TEST_DOCKER, through Docker's command line."""

import os
import subprocess
import tempfile
from pathlib import Path

# Images with busybox, built here because no image can be pulled. The versions differ only in their tag.
IMAGE = "windlass-test/busybox:1.0.0"
IMAGE_PATCHED = "windlass-test/busybox:1.0.1"
IMAGE_NEWER = "windlass-test/busybox:1.1.0"
PROGRAMS = ["sh", "httpd", "sleep", "echo", "cat", "ls", "rm", "mkdir", "touch"]


class Docker:
    """A context manager that removes the containers at its end."""

    def __enter__(self):
        self.host = os.environ.get("WINDLASS_TEST_DOCKER") or None
        assert self.host, "WINDLASS_TEST_DOCKER names the Docker engine to test on; scripts/test sets it"
        if subprocess.run(self.command("image", "inspect", IMAGE_NEWER), capture_output=True).returncode:
            self.make_images()
        return self

    def __exit__(self, *_):
        for container in self.containers():
            self.run("rm", "--force", "--volumes", container)

    def command(self, *arguments):
        return ["docker", "--host", self.host, *arguments]

    def run(self, *arguments, data=None):
        return subprocess.run(self.command(*arguments), input=data, check=True, capture_output=True).stdout.decode().strip()

    def containers(self):
        """All containers of Windlass, running or not. The engine is private to these checks."""
        return self.run("ps", "--all", "--quiet", "--no-trunc", "--filter", "label=windlass.instance").split()

    def make_images(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("bin", "tmp", "proc", "sys", "dev", "etc"):
                (Path(folder) / name).mkdir()
            programs = Path(folder) / "bin"
            (programs / "busybox").write_bytes(Path("/bin/busybox").read_bytes())
            (programs / "busybox").chmod(0o755)
            for name in PROGRAMS:
                (programs / name).symlink_to("busybox")
            tar = subprocess.run(["tar", "-C", folder, "-c", "."], check=True, capture_output=True).stdout
        self.run("import", "-", IMAGE, data=tar)
        self.run("tag", IMAGE, IMAGE_PATCHED)
        self.run("tag", IMAGE, IMAGE_NEWER)
