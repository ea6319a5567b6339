"""Servers with data of every kind: typical and hostile."""

import time
import urllib.parse

from browser.docker import IMAGE
from browser.webdriver import wait_for

PAGES = [
    "", "jobs", "queues", "runs", "pools", "workers", "subjects", "failures", "dead-letters", "triggers", "deliveries", "runtimes", "signals", "history",
    "tokens", "system",
]
# Markup, attribute, script, style and template syntax in one text.
POLYGLOT = (
    "jaVasCript:/*-/*`/*'/*\"/**/(window.ran=1 )//</stYle/</titLe/</teXtarEa/</scRipt/--!>"
    "<sVg/oNload=window.ran=2//><img src=x onerror=window.ran=3>{{7*7}}"
)


def things_with_polyglots(server):
    """Writes a polyglot into every field that accepts one. Returns the pages that show them. Needs a Docker engine."""
    name = POLYGLOT[:100]
    job = server.job(affinity=name, subject=name, run=name, tags=[name], unique_key=name, concurrency_key=name)
    server.post("jobs", {"queue": "q", "kind": "k", "payload": {POLYGLOT: [POLYGLOT, {POLYGLOT: POLYGLOT}]}})
    worker = server.post("workers", {"name": name, "queues": ["q"], "affinities": [name], "lease_s": 600})["id"]
    broken = server.job("q", affinity=name)
    claimed = server.claim(worker)
    signal = {"epoch": claimed["epoch"], "summary": POLYGLOT, "next_actions": [{"label": name, "href": "/" + name}, {"label": name, "href": "https://x.example/" + name}]}
    server.put(f"jobs/{claimed['id']}/signal", signal)
    error = {"code": name[:60], "message": POLYGLOT, "retryable": False}
    server.settle(worker, claimed, "fail", error=error)
    server.post("queues/mail/pause", {"reason": POLYGLOT})
    subject = urllib.parse.quote(name, safe="")
    server.put(f"subjects/{subject}", {"facts": {"os": POLYGLOT}})
    server.put(f"subjects/{subject}/backoffs/*", {"for_s": 600, "cause": POLYGLOT})
    selector = {"all": [{"fact": "os", "exists": True}]}
    server.put("processes/patch", {"selector": selector, "queue": "fleet", "kind": "patch", "payload": {"x": POLYGLOT}})
    target = {"http": {"url": "http://127.0.0.1:9/" + urllib.parse.quote(POLYGLOT)}}
    trigger = server.post("triggers", {"name": name, "source": "pubsub", "filter": {"topic": "*"}, "target": target})["id"]
    server.post(f"topics/{subject}", {"x": POLYGLOT})
    server.job(webhook={"url": "http://127.0.0.1:9/" + urllib.parse.quote(POLYGLOT)})
    # One runtime does not start, so that the error of the engine is shown. The other prints the text to its log.
    server.put("runtimes/mute", {"image": IMAGE, "command": [POLYGLOT]})
    start(server, "mute")
    loud = {"image": IMAGE, "command": ["sh", "-c", 'echo "$WORDS"; sleep 600'], "env": {"WORDS": POLYGLOT}, "stop_grace_s": 1}
    server.put("runtimes/loud", loud)
    start(server, "loud")
    server.put("pools/gpu", {"slots": 1, "members": [{"affinity": name, "runtime": "mute"}]})
    nodes = [{"name": name, "queue": "unserved", "kind": "k"}, {"name": "b", "queue": "unserved", "kind": "k", "needs": [name]}]
    run = server.post("runs", {"name": name, "tags": [name], "nodes": nodes})["id"]
    flow = server.worker("flow")
    suspended = server.job("flow")
    claimed = server.claim(flow)
    failed = {"code": name[:60], "message": POLYGLOT, "retryable": True}
    ops = [{"op": "step", "key": name, "error": failed}, {"op": "step", "key": name, "result": {POLYGLOT: POLYGLOT}, "attempt": 2}]
    ops.append({"op": "approval", "key": name + "!", "title": POLYGLOT, "detail": POLYGLOT})
    for op in ops:
        server.post(f"workers/{flow}/journal", {"writes": [{"job_id": suspended, "epoch": claimed["epoch"], "ops": [op]}]})
    server.settle(flow, claimed, "suspend", wake={"any": [name + "!"]})
    wait_for("the group of failures", lambda: server.get("failures")["items"])
    return [*PAGES, f"runs/{run}", f"jobs/{suspended}", f"jobs/{job}", f"jobs/{broken}", f"subjects/{subject}", f"triggers/{trigger}", "runtimes/mute", "runtimes/loud", delivery(server)]


def full(server):
    """Creates objects of every kind. Returns the pages that show them. Needs a Docker engine."""
    failed = server.failed_job(subject="registry/api:1.4", tags=["nightly"])
    waiting = server.job()
    server.job("later", "digest", run_at=f"{time.gmtime().tm_year + 1}-01-01T00:00:00Z")
    server.job("batch")
    server.post("queues/mail/pause", {"reason": "the relay is down"})
    worker = server.worker("batch")
    claimed = server.claim(worker)
    server.put(f"jobs/{claimed['id']}/signal", {"epoch": claimed["epoch"], "state": "working", "phase": "fetch", "progress": 0.4})
    server.put("subjects/web-01", {"kind": "machine", "facts": {"os": "debian12"}})
    server.put("processes/patch", {"selector": {"all": [{"fact": "os", "exists": True}]}, "queue": "fleet", "kind": "patch"})
    server.put("subjects/web-01/backoffs/*", {"for_s": 600, "cause": "the disk smokes"})
    target = {"job": {"queue": "reports", "kind": "nightly"}}
    trigger = server.post("triggers", {"name": "nightly", "source": "cron", "filter": {"schedule": "0 3 * * *"}, "target": target})["id"]
    hooked = server.job("hooked", webhook={"url": "http://127.0.0.1:9/hook"})
    server.post(f"jobs/{hooked}/cancel")
    server.job("hooked")
    event = {"job_id": failed, "surface": "ui", "event_type": "signal.rendered", "ttfs_ms": 140, "cache_hit": True}
    server.post("ttfs/events", {"events": [event]})
    wait_for("the group of failures", lambda: server.get("failures")["items"])
    server.put("runtimes/web", {"image": IMAGE, "command": ["sh", "-c", "echo up; sleep 600"], "env": {"MODE": "x"}, "stop_grace_s": 1})
    start(server, "web")
    server.put("runtimes/broken", {"image": IMAGE, "command": ["/no/such/program"]})
    members = [{"affinity": "llama", "runtime": "web"}, {"affinity": "mistral", "runtime": "broken"}]
    server.put("pools/gpu", {"slots": 1, "members": members, "handler": {"timeout_s": 1}})
    for queue, affinity in (("gpu", "mistral"), ("ask", "phi"), ("ask", "qwen")):
        server.job(queue, "ask", affinity=affinity)
    wait_for("the model that fails", lambda: server.get("pools/gpu")["members"][1]["cause"])
    nodes = [{"name": "split", "queue": "ci", "kind": "split"}, {"name": "join", "queue": "ci", "kind": "join", "needs": ["split"]}]
    run = server.post("runs", {"name": "release", "tags": ["nightly"], "nodes": nodes})["id"]
    flow = server.worker("flow")
    suspended = server.job("flow")
    step = server.claim(flow)
    ops = [{"op": "step", "key": "build", "result": 7}, {"op": "approval", "key": "ok", "title": "Deploy?"}]
    server.post(f"workers/{flow}/journal", {"writes": [{"job_id": suspended, "epoch": step["epoch"], "ops": ops}]})
    server.settle(flow, step, "suspend", wake={"any": ["ok"]})
    return [*PAGES, f"runs/{run}", f"jobs/{suspended}", f"jobs/{failed}", f"jobs/{waiting}", f"jobs/{claimed['id']}", "subjects/web-01", f"triggers/{trigger}", "runtimes/web", "runtimes/broken", delivery(server)]


def start(server, runtime):
    """Starts a runtime and waits until the operation has ended, with any outcome."""
    server.post(f"runtimes/{runtime}/start?wait=30s")
    wait_for(f"the start of {runtime} to be over", lambda: server.get(f"runtimes/{runtime}")["in_flight"] is None)


def delivery(server):
    """Returns the page of a delivery with a failed attempt."""
    tried = lambda: [delivery for delivery in server.get("deliveries")["items"] if delivery["error"]]
    return f"deliveries/{wait_for('a delivery that failed', tried)[0]['id']}"
