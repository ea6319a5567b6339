"""The test program of the conformance suite. See sdk/conformance/README.md for its protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, cast

from windlass import (
    ApiError,
    Approval,
    Cancel,
    Context,
    Fail,
    JobCanceled,
    JobFailed,
    JobRequest,
    Node,
    Operation,
    Retry,
    Run,
    Snooze,
    StepFailed,
    WaitTimeout,
    Windlass,
    Worker,
    Workflow,
)

Perform = Callable[[Context, str, str, Any], Awaitable[None]]
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
        self.runs: dict[str, Run] = {}
        self.executions: Counter[tuple[str, str]] = Counter()
        self.prefix = f"{time.time_ns():x}"

    async def serve(self) -> None:
        """Reads commands until stdin is closed."""
        reader = asyncio.StreamReader(limit=64 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        write("ready", sdk="python", features=["jobs", "workflows", "runs", "compensation"])
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
        app = Windlass(token=command["token"])
        for kind in command["handlers"]:
            app.job(name=kind)(self.handle)
        for kind in command["workflows"]:
            app.workflow(name=kind, strict=command.get("strict", False))(self.handle_workflow)
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
        requests.extend(self.request(job) for job in command["jobs"])
        if len(requests) == 1:
            if key is not None:
                requests[0].options["idempotency_key"] = key
            ids = [(await self.client.push(requests[0])).id]
        else:
            ids = [handle.id for handle in await self.client.many(requests, idempotency_key=key)]
        write("pushed", ref=command["ref"], ids=ids)

    def request(self, job: dict[str, Any]) -> JobRequest[Any]:
        """The request for a job with the members of `POST /jobs`."""
        members: Any = {
            _MEMBERS.get(name, name): value for name, value in job.items() if name not in ("kind", "payload")
        }
        if "run_at" in members:
            members["run_at"] = datetime.fromisoformat(members["run_at"])
        return self.client.request(job["kind"], job.get("payload"), **members)

    async def event(self, command: dict[str, Any]) -> None:
        """Sends a signal event."""
        handle = self.client.handle(command["job"])
        await handle.send_event(command["name"], command["data"], idempotency_key=command.get("idempotency_key"))
        write("done", ref=command["ref"])

    async def approve(self, command: dict[str, Any]) -> None:
        """Answers an approval."""
        handle = self.client.handle(command["job"])
        await handle.approve(command["key"], approve=command["approve"], note=command.get("note"))
        write("done", ref=command["ref"])

    async def run(self, command: dict[str, Any]) -> None:
        """Starts a run."""
        members = command["run"]
        nodes = {
            node.pop("name"): Node(
                needs=node.pop("needs", ()), when=node.pop("when", "success"), request=self.request(node)
            )
            for node in members.pop("nodes")
        }
        run = await self.client.start_run(nodes, **members)
        self.runs[run.id] = run
        write("run_started", ref=command["ref"], id=run.id, nodes={name: job.id for name, job in run.nodes.items()})

    async def wait_run(self, command: dict[str, Any]) -> None:
        """Waits for the end of a run."""
        view = await self.runs[command["run"]].wait(command["timeout_s"])
        write("run_ended", ref=command["ref"], state=view.state)

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
        """The handler of every kind of job."""
        return await self.answer(ctx, payload, self.perform)

    async def handle_workflow(self, ctx: Workflow, payload: Any, /) -> Any:
        """The handler of every kind of workflow."""
        values: list[Any] = []

        async def perform(ctx: Context, call: str, name: str, argument: Any) -> None:
            await self.perform_in(cast("Workflow", ctx), call, name, argument, values)

        result = await self.answer(ctx, payload, perform)
        return values if result == {"$values": True} else result

    async def answer(self, ctx: Context, payload: Any, perform: Perform) -> Any:
        """Reports a call and performs the actions of its answer."""
        call = f"{self.prefix}-{next(self.numbers)}"
        self.actions[call] = asyncio.get_running_loop().create_future()
        self.released[call] = asyncio.Event()
        write("called", call=call, job=ctx.id, kind=ctx.kind, attempt=ctx.attempt, payload=payload,
              inputs=ctx.inputs or None)  # fmt: skip
        try:
            for action in await self.actions[call]:
                ((name, argument),) = action.items()
                if name == "return":
                    return argument
                if name == "echo":
                    return payload
                if name == "return_text":
                    return "x" * argument
                if name == "return_input":
                    return await ctx.input(argument)
                if name != "return_if":
                    await perform(ctx, call, name, argument)
                elif payload == argument["payload"]:
                    return argument["value"]
        except asyncio.CancelledError:
            write("stopped_early", call=call)
            raise
        finally:
            del self.actions[call]  # Undo steps may hold after the end of the call.
        return None

    async def perform_all(self, ctx: Workflow, call: str, actions: list[dict[str, Any]]) -> list[Any]:
        """Performs the actions of a branch or a scope and returns their values."""
        values: list[Any] = []
        for action in actions:
            ((name, argument),) = action.items()
            await self.perform_in(ctx, call, name, argument, values)
        return values

    async def perform_in(self, ctx: Workflow, call: str, name: str, argument: Any, values: list[Any]) -> None:
        """Performs an action of a workflow and adds its value."""
        if name == "step":
            values.append(await self.step(ctx, call, argument))
        elif name == "steps":
            branches = [ctx.step(self.numbered, call, n, name=argument["name"]) for n in range(argument["count"])]
            values.append(sum(await ctx.gather(branches)))
        elif name in ("sleep", "event", "approval"):
            try:
                value = await self.operation(ctx, name, argument)
                values.append(value.approved if isinstance(value, Approval) else value)
            except WaitTimeout as timeout:
                values.append(timeout.code)
        elif name == "children":
            children = [ctx.spawn(self.request(job)) for job in self.of_queue(ctx, argument["jobs"])]
            if argument.get("catch"):
                results = await ctx.gather(children, name=argument["name"], return_exceptions=True)
                values.append([result.code if isinstance(result, StepFailed) else result for result in results])
            else:
                values.append(await ctx.gather(children, name=argument["name"]))
        elif name == "publish":
            values.append(await ctx.publish(argument["topic"], argument["data"], name=argument["name"]))  # type: ignore[func-returns-value]
        elif name == "gather":
            values.append(await ctx.gather([self.perform_all(ctx, call, actions) for actions in argument]))
        elif name == "first":
            operations = [self.operation(ctx, *next(iter(wait.items()))) for wait in argument]
            values.append((await ctx.first(*operations))[0])
        elif name == "scope":
            with ctx.scope(argument["name"]):
                values.append(await self.perform_all(ctx, call, argument["do"]))
        elif name == "continue_as":
            ctx.continue_as(argument)
        else:
            await self.perform(ctx, call, name, argument)

    def of_queue(self, ctx: Context, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The jobs, in the queue of the workflow."""
        return [{"queue": ctx.queue, **job} for job in jobs]

    def operation(self, ctx: Workflow, name: str, argument: dict[str, Any]) -> Operation[Any]:
        """A sleep, a wait for an event or an approval."""
        if name == "sleep":
            return ctx.sleep(argument["for_s"], name=argument["name"])
        timeout = argument.get("timeout_s")
        if name == "event":
            timeouts: Any = {} if timeout is None else {"timeout": timeout}
            return ctx.wait_for_event(argument["name"], match=argument.get("match", {}), **timeouts)
        return ctx.approval(argument["name"], argument["title"], timeout=timeout)

    async def numbered(self, call: str, number: int) -> int:
        """The function of one of many steps."""
        write("step", call=call, name=str(number))
        return number

    async def step(self, ctx: Workflow, call: str, step: dict[str, Any]) -> Any:
        """Runs a step."""

        async def run(_: Any) -> Any:
            return await self.execute_step(ctx, call, step)

        undo = step.get("undo")
        undo = {"name": undo} if isinstance(undo, str) else undo

        async def run_undo(_: Any) -> Any:
            return await self.execute_step(ctx, call, undo or {})

        retry = Retry(initial=step["initial_s"], attempts=step["attempts"], jitter=0) if "attempts" in step else None
        try:
            value = await ctx.step(
                run, step.get("input"), name=step["name"], undo=run_undo if undo else None, retry=retry
            )
            return len(value) if "returns_text" in step else value
        except StepFailed as failed:
            if not step.get("catch"):
                raise
            return failed.code

    async def execute_step(self, ctx: Workflow, call: str, step: dict[str, Any]) -> Any:
        """The function of a step."""
        write("step", call=call, name=step["name"])
        self.executions[ctx.id, step["name"]] += 1
        if self.executions[ctx.id, step["name"]] <= step.get("fails_first", 0):
            raise RuntimeError("boom")
        if "fails" in step:
            raise Fail(step["fails"]["message"], code=step["fails"]["code"])
        if step.get("hold"):
            write("holding", call=call)
            await self.released[call].wait()
        return "x" * step["returns_text"] if "returns_text" in step else step.get("returns")

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
    asyncio.run(Program().serve())
