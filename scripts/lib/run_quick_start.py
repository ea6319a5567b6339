#!/usr/bin/env python3
"""Runs the quick start of an SDK against a real server and compares what it prints. Called by `scripts/sdk`.

    run_quick_start.py README LANGUAGE FILE COMMAND…

The program is the first block of LANGUAGE in README below `## Quick start`. It is written to FILE, and COMMAND, in the folder
of FILE, runs it with WINDLASS_URL set. A comment at the end of the line that prints is the expected output. WINDLASS_BIN
names the server.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 60
MAX_LINES = 10


def quick_start(readme, language):
    """Returns the program and the output that it announces."""
    section = readme.read_text().partition("\n## Quick start\n")[2].partition("\n## ")[0]
    found = re.search(rf"^```{language}\n(.*?)^```$", section, re.M | re.S)
    if not found:
        raise SystemExit(f"{readme}: there is no block of {language} below `## Quick start`")
    program = found[1]
    count = len([line for line in program.splitlines() if line.strip()])
    if count > MAX_LINES:
        raise SystemExit(f"{readme}: the quick start has {count} lines, at most {MAX_LINES} are promised")
    expected = re.findall(r"print.*(?:#|//) (.+)$|console\.log.*// (.+)$", program, re.M)
    if not expected:
        raise SystemExit(f"{readme}: no line of the quick start has its output as a comment")
    return program, [first or second for first, second in expected]


def main():
    readme, language, file, command = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:]
    program, expected = quick_start(readme, language)
    file.write_text(program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    with tempfile.TemporaryDirectory() as folder:
        serve = [os.environ["WINDLASS_BIN"], "serve", "--listen", "127.0.0.1:0"]
        log = Path(folder, "server.log")
        with log.open("wb") as out:
            server = subprocess.Popen(serve, cwd=folder, env=environment, stdout=out, stderr=out)
        try:
            deadline = time.monotonic() + LIMIT_S
            while not (found := re.search(r"serves on (http\S+)", log.read_text())):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the server did not start:\n{log.read_text()}")
                time.sleep(0.02)
            environment["WINDLASS_URL"] = found[1]
            done = subprocess.run(
                [*command, str(file)], cwd=file.parent, env=environment, capture_output=True, text=True, timeout=LIMIT_S
            )
        finally:
            server.kill()
            server.wait()
    if done.returncode != 0 or done.stdout.splitlines() != expected:
        raise SystemExit(f"{readme}: the quick start returned {done.returncode}:\n{done.stdout}{done.stderr}")
    print(f"{readme}: the quick start printed {', '.join(expected)!r}")


if __name__ == "__main__":
    main()
