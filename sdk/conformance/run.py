#!/usr/bin/env python3
"""Runs the scenarios of this directory with the test program of an SDK, on real servers. See README.md for the protocol.

Usage: run.py [--only NAME]… [--database sqlite|postgres] [--jobs N] [--verbose] -- PROGRAM [ARGUMENT]…
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

HERE = Path(__file__).resolve().parent
#: How long a single step may take.
STEP_S = 120.0
SCENARIO_S = 300.0


class Failure(Exception):
    """A scenario failed. The message is for people."""


class Server:
    """A Windlass server on a port and a database of its own, which survive a restart."""

    def __init__(self, binary: str, database: str, directory: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.url = f"http://{self.address}"
        self._binary, self._database, self._directory = binary, database, directory
        self._process: subprocess.Popen[bytes] | None = None
        #: The token of the runner and of producers, and that of workers, which have no other right.
        self.token = self.worker_token = ""

    async def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
        command = [self._binary, "serve", "--database", self._database, "--listen", self.address]
        command += ["--data-dir", str(self._directory)]
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, cwd=self._directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + STEP_S
        while True:
            try:
                if (await self.request("GET", "/readyz", None))[0] == 200:
                    break
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"the server did not start:\n{(self._directory / 'server.log').read_text()[-2000:]}")
            await asyncio.sleep(0.05)
        if not self.token:
            self.token = await self._create_token("admin")
            self.worker_token = await self._create_token("worker")

    async def _create_token(self, role: str) -> str:
        status, created = await self.request("POST", "/api/v1/tokens", {"name": role, "role": role})
        if status != 201:
            raise Failure(f"the token was not created: {created}")
        return created["token"]

    async def end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            await asyncio.to_thread(self._process.wait)
            self._process = None

    async def request(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        return await asyncio.to_thread(self._request, method, path, body)

    def _request(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        status, text = self.download(method, path, None if body is None else json.dumps(body).encode())
        try:
            return status, json.loads(text) if text else None
        except ValueError:
            return status, None

    def download(self, method: str, path: str, data: bytes | None = None) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self.token}"} if self.token else {})
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=STEP_S) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


class Program:
    """The test program of the SDK, and the events that it has written."""

    def __init__(self, command: list[str], server: Server, on_event: Any, log: Path):
        self._command, self._server, self._on_event, self._log = command, server, on_event, log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
        environment |= {"WINDLASS_URL": self._server.url, "WINDLASS_TOKEN": self._server.token}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, env=environment, stdin=-1, stdout=-1, stderr=log, limit=64 << 20, start_new_session=True
            )
        self._reader = asyncio.get_running_loop().create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._on_event(json.loads(line))
        self._on_event({"event": "exited"})

    def send(self, command: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    def signal(self, number: int) -> None:
        assert self._process is not None
        # The process group includes what a launcher such as npx has started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def close(self) -> int:
        """Closes stdin and returns the exit code."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        try:
            return await asyncio.wait_for(self._process.wait(), STEP_S)
        except asyncio.TimeoutError:
            raise Failure("the program did not end when its stdin was closed") from None
        finally:
            await self.kill()

    async def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            await self._process.wait()
        if self._reader is not None:
            await self._reader


class Scenario:
    """One run of a scenario against one server."""

    def __init__(self, document: dict[str, Any], server: Server, command: list[str], queue: str, log: Path):
        self.document, self.server, self.queue = document, server, queue
        self.program = Program(command, server, self._on_event, log)
        self.ids: dict[str, str] = {}
        self.runs: dict[str, str] = {}
        self.waited: dict[str, dict[str, Any]] = {}
        self.calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.call_order: list[str] = []
        self.held: dict[str, list[str]] = defaultdict(list)
        self.stopped_early: dict[str, int] = defaultdict(int)
        self.steps: dict[str, list[str]] = defaultdict(list)
        self.answers: dict[str, dict[str, Any]] = {}
        self.job_of_call: dict[str, str] = {}
        self.refs = 0
        self.exits = 0
        self.starting: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()

    # ---- events of the program

    def _on_event(self, event: dict[str, Any]) -> None:
        name = event["event"]
        if name == "ready":
            self.answers["ready"] = event
        elif name == "called":
            self._on_call(event)
        elif name == "holding":
            self.held[self.job_of_call[event["call"]]].append(event["call"])
        elif name == "stopped_early":
            self.stopped_early[self.job_of_call[event["call"]]] += 1
        elif name == "step":
            self.steps[self.job_of_call[event["call"]]].append(event["name"])
        elif name == "exited":
            self.exits += 1
        else:
            self.answers[event.get("ref") or f"{name}:{event.get('id')}"] = event
        self.changed.set()

    def _on_call(self, event: dict[str, Any]) -> None:
        calls = self.calls[event["job"]]
        calls.append(event)
        self.call_order.append(event["job"])
        self.job_of_call[event["call"]] = event["job"]
        handlers = {**self.document.get("handlers", {}), **self.document.get("workflows", {})}
        scripts = handlers.get(event["kind"], [[]])
        actions = scripts[min(len(calls), len(scripts)) - 1]
        self.program.send({"do": "act", "call": event["call"], "actions": self.filled(actions)})

    async def until(self, what: str, check: Any, timeout: float = STEP_S) -> Any:
        """Waits for an event after which `check` returns something true, and returns it."""
        deadline = time.monotonic() + timeout
        exits = self.exits
        while not (found := check()):
            if self.exits > exits:
                raise Failure(f"the program ended while the scenario waited: {what}")
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), max(deadline - time.monotonic(), 0.001))
            except asyncio.TimeoutError:
                raise Failure(f"timed out: {what}") from None
        return found

    async def answer(self, command: dict[str, Any], timeout: float = STEP_S) -> dict[str, Any]:
        """Sends a command and returns its answer."""
        self.refs += 1
        ref = f"r{self.refs}"
        self.program.send({**command, "ref": ref})
        return await self.until(f"an answer to {command}", lambda: self.answers.pop(ref, None), timeout)

    # ---- steps

    async def run(self) -> None:
        if "queue" in self.document:
            await self.http("PUT", f"/api/v1/queues/{self.queue}", self.document["queue"], 200)
        await self.start_program()
        try:
            if self.document.get("worker") != "none":
                await self.start_worker()
            for step in self.document["do"]:
                try:
                    await self.step(step)
                except Failure as failure:
                    raise Failure(f"step {json.dumps(step, ensure_ascii=False)[:200]}: {failure}") from None
            await self.check(self.document.get("expect", {}))
            code = await self.program.close()
            if code != 0:
                raise Failure(f"the program ended with exit code {code}")
            if self.starting is not None:
                await self.starting
        finally:
            if self.starting is not None:
                self.starting.cancel()
            await self.program.kill()

    async def start_program(self) -> None:
        await self.program.start()
        await self.until("the event ready", lambda: self.answers.pop("ready", None))

    async def start_worker(self) -> None:
        settings = self.document.get("worker")
        settings = settings if isinstance(settings, dict) else {}
        kinds = {name: sorted(self.document.get(name, {})) for name in ("handlers", "workflows")}
        token = self.server.worker_token
        self.program.send({"do": "worker", "id": "w", "token": token, "queues": [self.queue], **kinds, **settings})
        await self.until("the event started", lambda: self.answers.pop("started:w", None))

    async def step(self, step: dict[str, Any]) -> None:
        ((name, argument),) = step.items()
        method = getattr(self, f"step_{name}", None)
        if method is None:
            raise Failure(f"unknown step {name!r}")
        await method(argument)

    async def step_push(self, push: dict[str, Any]) -> None:
        push = dict(push)
        names, error, key = [push.pop("as", "")], push.pop("error", None), push.pop("idempotency_key", None)
        await self.push(names, [push], key, error)

    async def step_many(self, many: dict[str, Any]) -> None:
        jobs = many["jobs"]
        if "repeat" in many:
            jobs = [{**job, "payload": {"n": n}} for job in jobs for n in range(many["repeat"])]
        names = many.get("as", [])
        if isinstance(names, str):
            names = [f"{names}{n}" for n in range(len(jobs))]
        await self.push(names, jobs, many.get("idempotency_key"), many.get("error"))

    async def push(self, names: list[str], jobs: list[Any], key: str | None, error: dict[str, Any] | None) -> None:
        command: dict[str, Any] = {"do": "push", "jobs": [{"queue": self.queue, **self.scheduled(job)} for job in jobs]}
        if key is not None:
            command["idempotency_key"] = f"{self.queue}-{key}"
        answer = await self.answer(command)
        if error is not None:
            expect(answer, {"event": "error", **error}, "the rejection")
        elif answer["event"] != "pushed":
            raise Failure(f"the push failed: {answer}")
        elif len(answer["ids"]) != len(jobs):
            raise Failure(f"{len(jobs)} jobs were pushed, and {len(answer['ids'])} ids were returned")
        else:
            self.ids.update(zip(names, answer["ids"]))

    async def step_wait(self, name: str) -> None:
        names = [known for known in self.ids if known.startswith(name[:-1])] if name.endswith("*") else [name]
        command = {"do": "wait", "timeout_s": STEP_S}
        answers = await asyncio.gather(*(self.answer({**command, "job": self.ids[n]}, STEP_S + 10) for n in names))
        for known, answer in zip(names, answers):
            if answer["event"] != "ended":
                raise Failure(f"waiting for {known} failed: {answer}")
            self.waited[known] = answer

    async def step_cancel(self, name: str) -> None:
        answer = await self.answer({"do": "cancel", "job": self.ids[name]})
        if answer["event"] != "done":
            raise Failure(f"the cancellation failed: {answer}")

    async def command(self, name: str, argument: dict[str, Any]) -> None:
        """Sends a command about a job, which must be done or rejected as expected."""
        members = {"job": self.ids[argument["job"]]}
        error = argument.get("error")
        members |= {key: self.filled(value) for key, value in argument.items() if key not in ("job", "error")}
        answer = await self.answer({"do": name, **members})
        expect(answer, {"event": "error", **error} if error else {"event": "done"}, f"the answer to {name}")

    async def step_event(self, event: dict[str, Any]) -> None:
        await self.command("event", event)

    async def step_approve(self, approval: dict[str, Any]) -> None:
        await self.command("approve", approval)

    async def step_run(self, run: dict[str, Any]) -> None:
        run = dict(run)
        name = run.pop("as")
        run["nodes"] = [{"queue": self.queue, **node} for node in run["nodes"]]
        answer = await self.answer({"do": "run", "run": self.filled(run)})
        if answer["event"] != "run_started":
            raise Failure(f"the run was not started: {answer}")
        self.runs[name] = answer["id"]
        self.ids.update({f"{name}/{node}": job for node, job in answer["nodes"].items()})

    async def step_wait_run(self, wait: dict[str, Any]) -> None:
        command = {"do": "wait_run", "run": self.runs[wait["run"]], "timeout_s": STEP_S}
        expect(await self.answer(command, STEP_S + 10), {"event": "run_ended", "state": wait["is"]}, "the run")

    async def step_continued(self, continued: dict[str, Any]) -> None:
        job = await self.http("GET", f"/api/v1/jobs/{self.ids[continued['job']]}", None, 200)
        self.ids[continued["as"]] = job["result"]["continued_as"]

    async def step_fork(self, fork: dict[str, Any]) -> None:
        path = f"/api/v1/jobs/{self.ids[fork['job']]}/fork"
        self.ids[fork["as"]] = (await self.http("POST", path, {"from": fork["from"]}, 202))["id"]

    async def step_kind_called(self, called: dict[str, Any]) -> None:
        kind, count = called["kind"], called["count"]
        calls = lambda: [call for calls in self.calls.values() for call in calls if call["kind"] == kind]  # noqa: E731
        await self.until(f"{count} calls of {kind}", lambda: len(calls()) >= count)

    async def step_stepped(self, stepped: dict[str, Any]) -> None:
        job = self.ids[stepped["job"]]
        await self.until(f"{stepped['count']} steps", lambda: len(self.steps[job]) >= stepped["count"])

    async def step_called(self, called: dict[str, Any]) -> None:
        job = self.ids[called["job"]]
        await self.until(f"{called['count']} calls", lambda: len(self.calls[job]) >= called["count"])

    async def step_holding(self, name: str) -> None:
        await self.until("a handler that holds", lambda: self.held[self.ids[name]])

    async def step_stopped_early(self, name: str) -> None:
        await self.until("a cancelled handler", lambda: self.stopped_early[self.ids[name]])

    async def step_release(self, name: str) -> None:
        await self.step_holding(name)
        self.program.send({"do": "release", "call": self.held[self.ids[name]].pop(0)})

    async def step_state(self, state: dict[str, Any]) -> None:
        deadline = time.monotonic() + STEP_S
        while True:
            job = await self.http("GET", f"/api/v1/jobs/{self.ids[state['job']]}", None, 200)
            if job["state"] == state["is"]:
                return
            if time.monotonic() > deadline:
                raise Failure(f"the job is {job['state']}")
            await asyncio.sleep(0.05)

    async def step_http(self, http: dict[str, Any]) -> None:
        status = http.get("status", 200)
        await self.http(http.get("method", "GET"), self.filled(http["path"]), self.filled(http.get("body")), status)

    async def step_get(self, get: dict[str, Any]) -> None:
        expect(await self.http("GET", self.filled(get["path"]), None, 200), get["is"], f"GET {get['path']}")

    async def step_signal(self, signal: dict[str, Any]) -> None:
        path = f"/api/v1/jobs/{self.ids[signal['job']]}/signal"
        deadline = time.monotonic() + STEP_S
        while True:
            try:
                return expect(await self.http("GET", path, None, 200), signal["is"], f"GET {path}")
            except Failure:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.05)

    async def step_count(self, count: dict[str, Any]) -> None:
        page = await self.http("GET", f"/api/v1/jobs?queue={self.queue}&limit=500", None, 200)
        if len(page["items"]) != count["is"]:
            raise Failure(f"the queue has {len(page['items'])} jobs")

    async def step_order(self, names: list[str]) -> None:
        known = {self.ids[name]: name for name in names}
        order = [known[job] for job in self.call_order if job in known]
        if order != names:
            raise Failure(f"the calls came in the order {order}")

    async def step_not_called(self, name: str) -> None:
        if calls := self.calls[self.ids[name]]:
            raise Failure(f"the handler was called: {calls}")

    async def step_drain_workers(self, _: Any) -> None:
        page = await self.http("GET", "/api/v1/workers?limit=500", None, 200)
        for worker in page["items"]:
            if worker["queues"] == [self.queue]:
                await self.http("POST", f"/api/v1/workers/{worker['id']}/drain", None, 204)

    async def step_server_in_s(self, delay: float) -> None:
        async def start() -> None:
            await asyncio.sleep(delay)
            await self.server.start()

        self.starting = asyncio.get_running_loop().create_task(start())

    async def step_server(self, action: str) -> None:
        if action == "start":
            await self.server.start()
        else:
            await self.server.end({"kill": signal.SIGKILL, "stop": signal.SIGTERM}[action])

    async def step_program(self, action: Any) -> None:
        if action == "kill":
            await self.program.kill()
            self.held.clear()
            await self.start_program()
            if self.document.get("worker") != "none":
                await self.start_worker()
        else:
            self.program.signal(signal.SIGSTOP)
            await asyncio.sleep(action["freeze_s"])
            self.program.signal(signal.SIGCONT)

    async def step_stop(self, _: Any) -> None:
        await self.step_stop_begin(_)
        await self.step_stop_end(_)

    async def step_stop_begin(self, _: Any) -> None:
        self.program.send({"do": "stop", "id": "w"})

    async def step_stop_end(self, _: Any) -> None:
        await self.until("the event stopped", lambda: self.answers.pop("stopped:w", None))

    async def step_start(self, _: Any) -> None:
        await self.start_worker()

    async def step_pause_s(self, pause: float) -> None:
        await asyncio.sleep(pause)

    async def http(self, method: str, path: str, body: Any, status: int) -> Any:
        got, answer = await self.server.request(method, path, body)
        if got != status:
            raise Failure(f"{method} {path} returned {got}: {answer}")
        return answer

    def scheduled(self, job: dict[str, Any]) -> dict[str, Any]:
        """Fills a job that is pushed. `run_at_in_s` becomes `run_at`."""
        job = self.filled(job)
        if "run_at_in_s" in job:
            job["run_at"] = (datetime.now(timezone.utc) + timedelta(seconds=job.pop("run_at_in_s"))).isoformat()
        return job

    def filled(self, value: Any) -> Any:
        """Replaces `{name}` by the id of a job, `{queue}` by the name of the queue, and expands `$text` and `$repeat`."""
        if isinstance(value, dict) and set(value) == {"$text"}:
            return "x" * value["$text"]
        if isinstance(value, dict) and "$repeat" in value:
            return [self.filled({**value["$repeat"], "payload": {"n": n}}) for n in range(value["times"])]
        if isinstance(value, dict):
            return {key: self.filled(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self.filled(part) for part in value]
        if isinstance(value, str) and "{" in value:
            for name, replacement in (*self.ids.items(), ("queue", self.queue)):
                value = value.replace(f"{{{name}}}", replacement)
        return value

    # ---- expectations

    async def check(self, expected: dict[str, Any]) -> None:
        for name, calls in expected.get("calls", {}).items():
            got = self.calls[self.ids[name]]
            if len(got) != len(calls):
                raise Failure(f"{name}: expected {len(calls)} calls, got {len(got)}: {got}")
            for number, (call, want) in enumerate(zip(got, calls), 1):
                expect(call, want, f"{name}: call {number}")
        for name, members in expected.get("jobs", {}).items():
            names = [known for known in self.ids if known.startswith(name[:-1])] if name.endswith("*") else [name]
            for known in names:
                job = await self.http("GET", f"/api/v1/jobs/{self.ids[known]}", None, 200)
                members = self.filled(members)
                expect(job, members, f"{known}: GET /jobs/{self.ids[known]}")
                if known in self.waited:
                    waited = {key: want for key, want in members.items() if key in ("state", "result", "error")}
                    expect(self.waited[known], waited, f"{known}: what wait returned")
        for name, events in expected.get("history", {}).items():
            page = await self.http("GET", f"/api/v1/jobs/{self.ids[name]}/history", None, 200)
            got_events = [item["event"] for item in page["items"]]
            if got_events != events:
                raise Failure(f"{name}: expected the history {events}, got {got_events}")
        for name, count in expected.get("stopped_early", {}).items():
            if self.stopped_early[self.ids[name]] != count:
                raise Failure(f"{name}: expected {count} cancelled calls, got {self.stopped_early[self.ids[name]]}")
        for name, steps in expected.get("steps", {}).items():
            if isinstance(steps, dict):
                expect({"steps": self.steps[self.ids[name]]}, {"steps": steps}, name)
            elif in_order(self.steps[self.ids[name]], steps) != steps:
                raise Failure(f"{name}: expected the steps {steps}, got {self.steps[self.ids[name]]}")
        for name, keys in expected.get("keys", {}).items():
            got_keys = [entry["key"] for entry in await self.journal(name)]
            if got_keys != keys:
                raise Failure(f"{name}: expected the keys {keys}, got {got_keys}")
        for name, entries in expected.get("journal", {}).items():
            recorded = {entry["key"]: entry for entry in await self.journal(name)}
            for key, members in entries.items():
                expect(recorded.get(key, {}), self.filled(members), f"{name}: the journal entry {key}")
        for name, text in expected.get("warnings", {}).items():
            page = await self.http("GET", f"/api/v1/jobs/{self.ids[name]}/journal?limit=1", None, 200)
            if not any(text in warning for warning in page["warnings"]) if text else page["warnings"]:
                raise Failure(f"{name}: expected the warning {text}, got {page['warnings']}")
        for first, second in expected.get("same", []):
            if self.ids[first] != self.ids[second]:
                raise Failure(f"{first} and {second} are two jobs")
        for first, second in expected.get("different", []):
            if self.ids[first] == self.ids[second]:
                raise Failure(f"{first} and {second} are the same job")
        for name, artifacts in expected.get("artifacts", {}).items():
            for artifact, text in artifacts.items():
                path = f"/api/v1/jobs/{self.ids[name]}/artifacts/{artifact}"
                got_text = (await asyncio.to_thread(self.server.download, "GET", path))[1].decode()
                if got_text != text:
                    raise Failure(f"{name}: artifact {artifact}: expected {text!r}, got {got_text[:200]!r}")


    async def journal(self, name: str) -> list[dict[str, Any]]:
        """Returns the entries of a job's journal."""
        entries: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = await self.http("GET", f"/api/v1/jobs/{self.ids[name]}/journal?limit=500{cursor}", None, 200)
            entries.extend(page["items"])
            if page["next_cursor"] is None:
                return entries
            cursor = f"&cursor={page['next_cursor']}"


def in_order(got: list[str], want: list[Any]) -> list[Any]:
    """Sorts what happened at the positions of a group in the order of the group."""
    sorted_: list[Any] = []
    rest = list(got)
    for part in want:
        if isinstance(part, list):
            group, rest = rest[: len(part)], rest[len(part) :]
            sorted_.append(part if sorted(group) == sorted(part) else group)
        else:
            sorted_.extend(rest[:1])
            rest = rest[1:]
    return sorted_ + rest


def expect(got: dict[str, Any], want: dict[str, Any], where: str) -> None:
    """Compares the members that are expected. An expected object is compared member by member."""
    for key, value in want.items():
        if isinstance(value, dict) and set(value) == {"$length"}:
            if len(got[key]) != value["$length"]:
                raise Failure(f"{where}: {key}: expected a length of {value['$length']}, got {len(got[key])}")
        elif key == "facts":
            for name, fact in value.items():
                expect(got[key].get(name) or {}, fact, f"{where}: fact {name}")
        elif key == "error" and isinstance(value, dict) and isinstance(got.get(key), dict):
            expect(got[key], value, f"{where}: {key}")
        elif key not in got or got[key] != value or isinstance(got[key], bool) != isinstance(value, bool):
            shown = json.dumps(got.get(key), ensure_ascii=False)[:500]
            raise Failure(f"{where}: {key}: expected {json.dumps(value, ensure_ascii=False)[:500]}, got {shown}")


class Databases:
    """Gives each server a database of its own."""

    def __init__(self, kind: str, directory: Path):
        self.kind, self._directory, self._count = kind, directory, 0
        self._addresses: list[str] = []
        self._postgres = os.environ.get("WINDLASS_TEST_POSTGRES", "")
        if kind == "postgres" and not self._postgres:
            sys.exit("run.py: WINDLASS_TEST_POSTGRES is not set; `scripts/postgres start DIR` prints an address")

    def create(self) -> tuple[str, Path]:
        self._count += 1
        directory = self._directory / f"{self.kind}-{self._count}"
        directory.mkdir()
        if self.kind == "sqlite":
            address = f"sqlite:{directory}/windlass.db"
        else:
            name = f"conformance_{os.getpid()}_{self._count}"
            self._psql(f"create database {name}")
            address = urlsplit(self._postgres)._replace(path=f"/{name}").geturl()
        self._addresses.append(address)
        return address, directory

    def verify(self, binary: str) -> bool:
        """Runs the history checker on every database."""
        passed = True
        for address in self._addresses:
            command = [binary, "verify", "--database", address]
            checked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if checked.returncode != 0:
                print(f"FAILED {' '.join(command)}\n{checked.stdout}{checked.stderr}", flush=True)
                passed = False
        return passed

    def drop(self) -> None:
        if self.kind == "postgres":
            for number in range(1, self._count + 1):
                self._psql(f"drop database if exists conformance_{os.getpid()}_{number} with (force)")

    def _psql(self, statement: str) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/psql"))
        command = [str(found[-1]) if found else "psql", self._postgres, "--quiet", "--command", statement]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


async def run_all(options: argparse.Namespace, kind: str, directory: Path) -> tuple[int, int]:
    """Runs the scenarios on one kind of database, then the history checker. Returns the numbers of passed and failed."""
    databases = Databases(kind, directory)
    binary = str(Path(os.environ.get("WINDLASS_BIN", HERE.parent.parent / "target/debug/windlass")).resolve())
    shared = Server(binary, *databases.create())
    files = sorted((HERE / "scenarios").glob("*.yaml"))
    if options.only:
        files = [file for file in files if file.stem in options.only]
        if missing := set(options.only) - {file.stem for file in files}:
            sys.exit(f"run.py: there is no scenario {', '.join(sorted(missing))}")
    slots = asyncio.Semaphore(options.jobs)
    features: list[str] = await features_of(options.program)

    async def one(file: Path) -> bool | None:
        document = yaml.safe_load(file.read_text())
        if document["needs"] not in features:
            return None
        async with slots:
            own = any("server" in step for step in document["do"])
            server = Server(binary, *databases.create()) if own else shared
            log = directory / f"{kind}-{file.stem}.log"
            scenario = Scenario(document, server, options.program, f"{file.stem}-{os.getpid()}", log)
            started = time.monotonic()
            try:
                if own:
                    await server.start()
                await asyncio.wait_for(scenario.run(), SCENARIO_S)
            except (Failure, asyncio.TimeoutError, OSError) as error:
                print(f"FAILED {kind} {file.stem}: {document['name']}\n  {str(error) or 'timed out'}", flush=True)
                tail = log.read_text()[-3000:] if log.exists() else ""
                print("  stderr of the program:\n" + "\n".join(f"    {line}" for line in tail.splitlines()), flush=True)
                return False
            finally:
                if own:
                    await server.end(signal.SIGKILL)
            print(f"passed {kind} {file.stem} ({time.monotonic() - started:.1f} s): {document['name']}", flush=True)
            return True

    try:
        await shared.start()
        results = list(await asyncio.gather(*(one(file) for file in files)))
        await shared.end(signal.SIGKILL)
        results.append(databases.verify(binary))
    finally:
        await shared.end(signal.SIGKILL)
        databases.drop()
    if None in results:
        print(f"{kind}: {results.count(None)} scenarios need a feature that the program lacks")
    return results.count(True), results.count(False)


async def features_of(command: list[str]) -> list[str]:
    """Asks the program for its features."""
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(b""), STEP_S)
    for line in out.splitlines():
        event = json.loads(line)
        if event.get("event") == "ready":
            return event["features"]
    sys.exit(f"run.py: {' '.join(command)} did not write the event ready")


def main() -> int:
    """Parses the command line and runs both databases."""
    parser = argparse.ArgumentParser(description="Runs the conformance scenarios with the test program of an SDK.")
    parser.add_argument("--only", action="append", metavar="NAME", help="run this scenario file only; may be repeated")
    parser.add_argument("--database", choices=("sqlite", "postgres"), help="run on this database only")
    parser.add_argument("--jobs", type=int, default=6, help="scenarios at a time [default: 6]")
    parser.add_argument("program", nargs="+", help="the test program and its arguments, after --")
    options = parser.parse_args()
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="windlass-conformance-") as directory:
        for kind in [options.database] if options.database else ["sqlite", "postgres"]:
            counts = asyncio.run(run_all(options, kind, Path(directory)))
            passed, failed = passed + counts[0], failed + counts[1]
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
