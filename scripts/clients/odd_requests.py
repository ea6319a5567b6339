#!/usr/bin/env python3
"""Sends malformed and random requests to every route. No response may be a 5xx.

    scripts/clients/odd_requests.py VENV [POSTGRES_URL]

VENV has PyPI's `schemathesis`. It reads /openapi.json and sends requests that violate each of its rules in turn, and random
valid requests. Runs on a SQLite file, and on a PostgreSQL server if its URL is given. WINDLASS_BIN names the binary.
"""

import os
import re
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Streams and followed logs do not end by themselves.
ENDLESS = "/stream$|/logs$"
SEED = "20261115"
LIMIT_S = 1800


def attack(venv, binary, database):
    with tempfile.TemporaryDirectory() as folder:
        args = [binary, "serve", "--listen", "127.0.0.1:0", "--database", database or f"sqlite:{folder}/odd.db"]
        log = open(Path(folder) / "server.log", "w")
        server = subprocess.Popen(args, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            url = server.stdout.readline().split("serves on ")[1].split()[0]
            command = [
                venv / "bin/schemathesis", "run", f"{url}/openapi.json", "--url", url, "--checks", "not_a_server_error",
                "--phases", "coverage,fuzzing", "--max-examples", "3", "--seed", SEED, "--workers", "2",
                # Longer than the server may hold a request open.
                "--exclude-path-regex", ENDLESS, "--request-timeout", "180", "--no-color",
            ]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
            counted = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
            if done.returncode != 0 or counted is None or counted[1] != counted[2]:
                print(done.stdout[-20_000:], done.stderr[-5_000:], Path(log.name).read_text()[-5_000:])
                raise SystemExit("odd_requests: a request was answered with 5xx, or not at all")
            assert server.poll() is None, "the server has ended"
            print(f"{counted[1]} odd requests of PyPI's schemathesis, no 5xx ({'PostgreSQL' if database else 'SQLite'})")
        finally:
            server.terminate()
            server.wait(60)


def main():
    venv = Path(sys.argv[1]).absolute()
    binary = os.environ.get("WINDLASS_BIN", str(ROOT / "target/debug/windlass"))
    attack(venv, binary, None)
    if len(sys.argv) > 2:
        base, name = sys.argv[2].rsplit("/", 1)[0], f"odd_{uuid.uuid4().hex}"
        subprocess.run(["psql", "-qX", sys.argv[2], "-c", f"create database {name}"], check=True)
        attack(venv, binary, f"{base}/{name}")


if __name__ == "__main__":
    main()
