"""The command `windlass-worker`: runs the handlers of an application until it receives SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .app import Windlass
from .errors import WorkerRejected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .worker import Worker

#: How often `--reload` looks for changes, in seconds.
SCAN_S = 0.5
MAX_FILES = 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser("windlass-worker", description="Run the handlers of a Windlass application.")
    parser.add_argument("app", help="the application, as module:variable")
    parser.add_argument("--reload", action="store_true", help="restart when a Python file below the folder changes")
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.reload:
        return _run_and_reload([argument for argument in arguments if argument != "--reload"])
    try:
        app = load(options.app)
    except (ImportError, ValueError) as error:
        logging.getLogger("windlass").exception("cannot load %s: %s", options.app, error)
        return 2
    return run(app, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a worker to a command."""
    parser.add_argument("--queue", action="append", metavar="NAME", help="queue to claim from; may be repeated")
    parser.add_argument("--concurrency", type=int, metavar="N", help="jobs that run at the same time [default: 16]")
    parser.add_argument("--affinity", action="append", metavar="NAME", help="affinity that the worker can load")
    parser.add_argument("--lease", metavar="TIME", help="lease without a heartbeat [default: 30s]")
    parser.add_argument("--drain", metavar="TIME", help="time for running handlers after SIGTERM [default: 30s]")
    parser.add_argument("--grace", metavar="TIME", help="time for cancelled handlers to stop [default: 5s]")
    parser.add_argument("--name", help="name shown to people [default: host and process id]")
    parser.add_argument("--until-empty", action="store_true", help="end when no job is ready")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def run(app: Windlass, options: argparse.Namespace) -> int:
    """Runs a worker with the options of the command and returns the exit code."""
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    names = {name: name for name in ("concurrency", "lease", "drain", "grace", "name")}
    names |= {"queues": "queue", "affinities": "affinity"}
    given: Any = {name: value for name, option in names.items() if (value := getattr(options, option)) is not None}
    code = 0
    try:
        worker = app.worker(**given)
    except ValueError as error:
        logging.getLogger("windlass").error("cannot start: %s", error)
        return 2
    try:
        asyncio.run(_work(worker, options.until_empty))
    except WorkerRejected:
        code = 1  # The worker has logged the reason.
    if worker.statistics.abandoned:
        # The interpreter would wait for the threads of handlers that ignore their cancellation.
        logging.shutdown()
        os._exit(code)
    return code


def load(target: str) -> Windlass:
    """Imports the application that `module:variable` names; the variable may be left out if there is only one."""
    sys.path.insert(0, "")
    module_name, _, variable = target.partition(":")
    module = importlib.import_module(module_name)
    if variable:
        found = getattr(module, variable, None)
        if not isinstance(found, Windlass):
            raise ValueError(f"{target} is not a Windlass application")
        return found
    apps = [value for value in vars(module).values() if isinstance(value, Windlass)]
    if len(apps) != 1:
        raise ValueError(f"{module_name} has {len(apps)} Windlass applications; name one: {module_name}:variable")
    return apps[0]


async def _work(worker: Worker, until_empty: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, worker.request_stop)
        except NotImplementedError:  # Windows.
            signal.signal(number, lambda _number, _frame: loop.call_soon_threadsafe(worker.request_stop) and None)
    await (worker.run_until_empty() if until_empty else worker.run())


def _run_and_reload(arguments: list[str]) -> int:
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopping.append(received))
    while True:
        before = _modified()
        child = subprocess.Popen([sys.executable, "-m", "windlass.cli", *arguments])  # noqa: S603
        while not stopping and _modified() == before:
            time.sleep(SCAN_S)
        child.terminate()
        code = child.wait()
        if stopping:
            return code


def _modified() -> dict[str, int]:
    found: dict[str, int] = {}
    for folder, names, files in os.walk("."):
        names[:] = [name for name in names if not name.startswith(".") and name not in ("__pycache__", "node_modules")]
        for file in files:
            if file.endswith(".py") and len(found) < MAX_FILES:
                path = Path(folder, file)
                found[str(path)] = path.stat().st_mtime_ns if path.exists() else 0
    return found


if __name__ == "__main__":
    sys.exit(main())
