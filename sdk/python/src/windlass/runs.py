"""Runs: groups of jobs with dependencies. Made by `Windlass.start_run`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict
from uuid import uuid4

from . import client as api
from .duration import Duration, seconds
from .errors import ApiError
from .job import Handle, JobRequest

#: The longest pause between two looks at a run that is awaited, in seconds.
POLL_S = 2.0


@dataclass(frozen=True)
class Node:
    """A job of a run: `Node(load.request(), needs=["extract"])`."""

    request: JobRequest[Any]
    #: The names of the nodes that must end first. Their results are `Context.inputs`.
    needs: Sequence[str] = ()
    #: Start after every need succeeded, after at least one failed, or after every need ended.
    when: Literal["success", "failure", "always"] = "success"

    def to_json(self, name: str) -> dict[str, Any]:
        """The node in the body of `POST /runs`."""
        return {"name": name, "needs": list(self.needs), "when": self.when, **self.request.to_json()}


class RunOptions(TypedDict, total=False):
    """Options of a run. All are optional."""

    #: A name for people.
    name: str
    #: The id [default: a random one].
    id: str
    #: What the first failure of a node does to the others [default: cancel].
    on_failure: Literal["cancel", "continue"]
    #: Labels, at most 32.
    tags: list[str]
    #: Receives the end of the run: an object with `url` and `secret`.
    webhook: Mapping[str, Any]


@dataclass(frozen=True)
class RunView:
    """A run as the server reports it. `raw` has all members of the answer."""

    id: str
    name: str | None
    state: Literal["running", "succeeded", "failed", "canceled"]
    #: The numbers of jobs: live, succeeded, failed, canceled.
    counts: dict[str, int]
    raw: dict[str, Any] = field(repr=False)


class Run:
    """A started run."""

    def __init__(self, client: api.Client, run_id: str, nodes: Mapping[str, Handle[Any]]):
        self._client = client
        #: The id of the run.
        self.id = run_id
        #: The jobs by the names of their nodes.
        self.nodes = dict(nodes)

    async def view(self) -> RunView:
        """Returns the run."""
        raw = await self._client.send(api.Call("GET", api.path("runs", self.id)))
        return RunView(raw["id"], raw["name"], raw["state"], raw["counts"], raw)

    async def wait(self, timeout: Duration | None = None) -> RunView:
        """Returns the run when it has ended. Raises TimeoutError after `timeout`; the run continues then."""
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        pause = 0.05
        while (view := await self.view()).state == "running":
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {self.id} has not ended in time")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, POLL_S)
        return view

    async def add(self, nodes: Mapping[str, Node | JobRequest[Any]]) -> None:
        """Adds nodes. They may need nodes that the run has already."""
        call = api.Call("POST", api.path("runs", self.id, "nodes"), api.encode_json({"nodes": nodes_json(nodes)}))
        accepted = await self._client.once(call)
        self.nodes |= {name: Handle(self._client, job) for name, job in accepted["nodes"].items()}

    async def cancel(self) -> None:
        """Cancels the jobs that have not ended."""
        await self._client.send(api.Call("POST", api.path("runs", self.id, "cancel")))


def nodes_json(nodes: Mapping[str, Node | JobRequest[Any]]) -> list[dict[str, Any]]:
    """The nodes in the body of `POST /runs`."""
    return [(node if isinstance(node, Node) else Node(node)).to_json(name) for name, node in nodes.items()]


async def start(client: api.Client, nodes: Mapping[str, Node | JobRequest[Any]], options: RunOptions) -> Run:
    """Starts a run, all jobs or none."""
    body = {"id": uuid4().hex, **options, "nodes": nodes_json(nodes)}
    try:
        accepted: dict[str, Any] = await client.send(api.Call("POST", "/runs", api.encode_json(body)))
    except ApiError as error:
        if "id" in options or error.code != "name_taken":
            raise
        # An earlier request was applied, and its answer was lost.
        view = await client.send(api.Call("GET", api.path("runs", str(body["id"]))))
        accepted = {"id": view["id"], "nodes": {node["name"]: node["job_id"] for node in view["nodes"]}}
    return Run(client, accepted["id"], {name: Handle[Any](client, job) for name, job in accepted["nodes"].items()})
