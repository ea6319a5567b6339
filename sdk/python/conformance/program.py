"""The test program of the conformance suite. See sdk/conformance/README.md for its protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import time
from datetime import datetime
from typing import Any

from windlass import (
    ApiError,
    Cancel,
    Context,
    Fail,
    JobCanceled,
    JobFailed,
    JobRequest,
    Retry,
    Snooze,
    Windlass,
    Worker,
)

log = logging.getLogger("conformance")
_MEMBERS = {"unique_key": "unique", "unique_for_s": "unique_for", "timeout_s": "timeout"}


def write(event: str, **members: Any) -> None:
    """Writes one event."""
    sys.stdout.write(json.dumps({"event": event, **members}) + "\n")
    sys.stdout.flush()


class Program:
    """The state of the program: its workers, and the handler calls that run."""

    def __init__(self) -> None:
        self.client = Windlass()
        self.workers: dict[str, Worker] = {}
        self.numbers = itertools.count(1)
        self.actions: dict[str, asyncio.Future[list[dict[str, Any]]]] = {}
        self.released: dict[str, asyncio.Event] = {}
        self.prefix = f"{time.time_ns():x}"

    async def run(self) -> None:
        """Reads commands until stdin is closed."""
        reader = asyncio.StreamReader(limit=64 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        write("ready", sdk="python", features=["jobs"])
        tasks: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            task = asyncio.create_task(self.execute(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        for worker in self.workers.values():
            worker.request_stop()
            worker.request_stop()
        await asyncio.gather(*(worker.wait() for worker in self.workers.values()))
        await self.client.close()

    async def execute(self, command: dict[str, Any]) -> None:
        """Executes one command."""
        try:
            await getattr(self, command["do"])(command)
        except ApiError as error:
            write("error", ref=command.get("ref"), code=error.code, status=error.status)
        except Exception:
            log.exception("the command %s failed", command["do"])

    async def worker(self, command: dict[str, Any]) -> None:
        """Starts a worker."""
        app = Windlass()
        for kind in command["handlers"]:
            app.job(name=kind)(self.handle)
        names = {"lease_s": "lease", "drain_s": "drain", "concurrency": "concurrency"}
        options: Any = {option: command[name] for name, option in names.items() if name in command}
        worker = self.workers[command["id"]] = app.worker(queues=command["queues"], grace=2, **options)
        await worker.start()
        write("started", id=command["id"])

    async def stop(self, command: dict[str, Any]) -> None:
        """Stops a worker."""
        await self.workers.pop(command["id"]).stop()
        write("stopped", id=command["id"])

    async def push(self, command: dict[str, Any]) -> None:
        """Pushes jobs."""
        key, requests = command.get("idempotency_key"), list[JobRequest[Any]]()
        for job in command["jobs"]:
            members: Any = {
                _MEMBERS.get(name, name): value for name, value in job.items() if name not in ("kind", "payload")
            }
            if "run_at" in members:
                members["run_at"] = datetime.fromisoformat(members["run_at"])
            request = self.client.request(job["kind"], job.get("payload"), **members)
            requests.append(request)
        if len(requests) == 1:
            if key is not None:
                requests[0].options["idempotency_key"] = key
            ids = [(await self.client.push(requests[0])).id]
        else:
            ids = [handle.id for handle in await self.client.many(requests, idempotency_key=key)]
        write("pushed", ref=command["ref"], ids=ids)

    async def wait(self, command: dict[str, Any]) -> None:
        """Waits for the end of a job."""
        ended: dict[str, Any] = {"state": "succeeded", "result": None, "error": None}
        try:
            ended["result"] = await self.client.handle(command["job"]).wait(command["timeout_s"])
        except JobFailed as failed:
            error = failed.job.error
            ended |= {"state": "failed", "error": error.__dict__ if error else None}
        except JobCanceled:
            ended["state"] = "canceled"
        write("ended", ref=command["ref"], **ended)

    async def cancel(self, command: dict[str, Any]) -> None:
        """Cancels a job."""
        await self.client.handle(command["job"]).cancel()
        write("done", ref=command["ref"])

    async def act(self, command: dict[str, Any]) -> None:
        """Passes actions to a handler call."""
        self.actions[command["call"]].set_result(command["actions"])

    async def release(self, command: dict[str, Any]) -> None:
        """Ends the action `hold`."""
        self.released[command["call"]].set()

    async def handle(self, ctx: Context, payload: Any, /) -> Any:
        """The handler of every kind."""
        call = f"{self.prefix}-{next(self.numbers)}"
        self.actions[call] = asyncio.get_running_loop().create_future()
        self.released[call] = asyncio.Event()
        write("called", call=call, job=ctx.id, kind=ctx.kind, attempt=ctx.attempt, payload=payload)
        try:
            for action in await self.actions[call]:
                ((name, argument),) = action.items()
                if name == "return":
                    return argument
                if name == "echo":
                    return payload
                if name == "return_text":
                    return "x" * argument
                await self.perform(ctx, call, name, argument)
        except asyncio.CancelledError:
            write("stopped_early", call=call)
            raise
        finally:
            del self.actions[call], self.released[call]
        return None

    async def perform(self, ctx: Context, call: str, name: str, argument: Any) -> None:
        """Performs an action that does not return from the handler."""
        if name == "raise":
            raise RuntimeError(argument)
        if name == "retry":
            raise Retry(argument["message"], code=argument["code"])
        if name == "fail":
            raise Fail(argument["message"], code=argument["code"])
        if name == "snooze":
            raise Snooze(argument)
        if name == "cancel":
            raise Cancel
        if name == "pause":
            await asyncio.sleep(argument)
        elif name == "block":
            time.sleep(argument)
        elif name == "hold":
            write("holding", call=call)
            await self.released[call].wait()
        elif name == "artifact":
            await ctx.artifact(argument["name"], argument["text"])
        elif name == "fact":
            ctx.fact(argument["name"], argument["value"])
        elif name in ("progress", "phase", "summary", "log"):
            getattr(ctx, name)(argument)
        else:
            raise Fail(f"unknown action {name!r}", code="unknown_action")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    asyncio.run(Program().run())
