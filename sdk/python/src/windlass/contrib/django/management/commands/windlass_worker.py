"""The command `manage.py windlass_worker`."""

# Django has no type annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from django.core.management.base import BaseCommand

from ..... import cli
from ... import task_backends


class Command(BaseCommand):
    """Runs the tasks of a backend."""

    help = "Run the tasks of a Windlass backend."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the options of a worker."""
        parser.add_argument("--backend", default="default", help="backend in the setting TASKS [default: default]")
        cli.add_options(parser)

    def handle(self, *_: Any, **options: Any) -> None:
        """Runs until SIGTERM."""
        backend = task_backends[options["backend"]]
        options["queue"] = options["queue"] or sorted(backend.queues)
        sys.exit(cli.run(backend.app, Namespace(**options)))
