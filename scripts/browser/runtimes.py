"""Runtimes and pools on a real Docker engine: the effect of each button on the engine."""

import urllib.error
import urllib.request

from browser.docker import IMAGE, IMAGE_NEWER, IMAGE_PATCHED, Docker
from browser.server import Server
from browser.webdriver import Browser, wait_for

# Serves its health and prints a counter until it is stopped.
COUNTS = (
    "trap 'exit 0' TERM; mkdir -p /www; echo ok > /www/health; httpd -p 8080 -h /www; n=0; "
    "while true; do n=$((n+1)); echo count $n; sleep 1; done"
)
# Responds to a job with its own name.
MODEL = (
    "trap 'exit 0' TERM; mkdir -p /www/cgi-bin; echo ok > /www/health; echo \"$ANSWER\" > /www/cgi-bin/run; "
    "/bin/busybox chmod +x /www/cgi-bin/run; httpd -f -p 8080 -h /www & wait"
)


def served(command, **more):
    probe = {"path": "/health", "port": 8080}
    return {"image": IMAGE, "command": ["sh", "-c", command], "ports": [{"container": 8080}], "probe": probe, "stop_grace_s": 2, **more}


def model(name, first=""):
    answer = f"#!/bin/sh\n{first}\necho 'Content-Type: application/json'\necho\necho '{{\"model\": \"{name}\"}}'\n"
    return served(MODEL, env={"ANSWER": answer})


def answers(endpoint):
    try:
        with urllib.request.urlopen(f"{endpoint}/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def a_runtime_is_started_followed_patched_restarted_stopped_and_removed(driver):
    with Docker() as docker, Server("--docker-host", docker.host) as server, Browser(driver) as browser:
        server.put("runtimes/web", served(COUNTS))
        web = lambda: server.get("runtimes/web")
        ended = lambda: web()["in_flight"] is None
        running = lambda: docker.run("ps", "--quiet", "--no-trunc").split()
        browser.open(f"{server.url}/runtimes")
        browser.shows("manual")
        browser.click("#runtime-web .start")
        wait_for("a container", lambda: web()["status"] == "running" and [web()["container_id"]] == running())
        wait_for("its answer", lambda: answers(web()["endpoint"]))
        # The row and the page of the log update without a reload.
        browser.find('#runtime-web[data-state="running"]')
        browser.shows("healthy")
        browser.click("#runtime-web a")
        browser.run("window.mark = 1")
        log = lambda: browser.run("return document.getElementById('log')?.textContent ?? ''")
        wait_for("the log", lambda: "count 1\n" in log())
        # Complete lines only: the last one may be incomplete.
        further = int(log().rpartition("\n")[0].split()[-1]) + 2
        wait_for("what is written from then on", lambda: f"count {further}\n" in log())
        # A paused log does not change. A resumed log continues.
        browser.click("#live")
        before = log()
        wait_for("more to be written", lambda: f"count {further + 2}" in docker.run("logs", web()["container_id"]))
        assert log() == before
        browser.click("#live")
        wait_for("the log to catch up", lambda: f"count {further + 2}\n" in log())
        first = web()["container_id"]
        browser.click("#patch-open")
        browser.type("#patch [name=image]", IMAGE_NEWER)
        browser.click("#patch button.primary")
        browser.shows("major and minor")
        assert web()["container_id"] == first
        browser.type("#patch [name=image]", IMAGE_PATCHED)
        browser.click("#patch button.primary")
        wait_for("the patch", lambda: web()["current_image"] == IMAGE_PATCHED and ended())
        second = web()["container_id"]
        assert second != first and running() == [second]
        wait_for("the log of the new container", lambda: log().startswith("count 1\n"))
        before = web()["started_at"]
        browser.click("#restart")
        browser.click("#sure-yes")
        wait_for("another start", lambda: web()["status"] == "running" and ended() and running() and web()["started_at"] > before)
        browser.click("#stop")
        browser.click("#sure-yes")
        wait_for("the stop", lambda: web()["status"] == "stopped" and not running())
        browser.click("#start")
        wait_for("the start", lambda: web()["status"] == "running" and ended() and running())
        browser.open(f"{server.url}/runtimes")
        browser.click("#runtime-web .stop")
        browser.click("#sure-yes")
        wait_for("the stop from the list", lambda: web()["status"] == "stopped" and not running())
        browser.click("#runtime-web a")
        browser.find("#start")
        browser.run("window.mark = 1")
        browser.click("#clean-up")
        browser.click("#sure-yes")
        wait_for("no container", lambda: web()["status"] == "removed" and not docker.containers())
        kinds = {line["kind"]: line["id"] for line in server.get("runtimes/web/operations?limit=100")["items"]}
        assert {"start", "stop", "restart", "patch", "cleanup_container"} <= set(kinds), kinds
        for operation in kinds.values():
            browser.find(f"#operation-{operation}")
        assert browser.run("return window.mark") == 1
        browser.click("#remove")
        browser.click("#sure-yes")
        wait_for("the list", lambda: browser.address().endswith("/runtimes"))
        browser.shows("No runtimes yet")
        assert not server.get("runtimes")["items"]


def a_pool_shows_its_slots_the_next_swap_and_what_fails(driver):
    with Docker() as docker, Server("--docker-host", docker.host) as server, Browser(driver) as browser:
        # The model is busy until the check releases it, so that other jobs wait.
        server.put("runtimes/alpha", model("alpha", "while [ ! -e /www/go ]; do sleep 1; done"))
        server.put("runtimes/beta", model("beta"))
        server.put("runtimes/broken", model("broken") | {"command": ["/no/such/program"]})
        ask = lambda affinity: server.job("gpu", "ask", affinity=affinity)
        jobs = [ask(affinity) for affinity in ("alpha", "beta", "alpha", "alpha", "alpha")]
        members = [{"affinity": name, "runtime": name} for name in ("alpha", "beta", "broken")]
        server.put("pools/gpu", {"slots": 1, "members": members, "starvation_s": 3600, "handler": {"path": "/cgi-bin/run"}})
        browser.open(f"{server.url}/pools")
        text = lambda place: browser.text(f"#pool-gpu {place}")
        wait_for("alpha in its slot", lambda: "alpha" in text(".slots") and "loaded" in text(".slots"))
        wait_for("beta to be next", lambda: text(".next-swap").startswith("beta when the loaded affinities have drained"))
        browser.shows("of 1 h")
        docker.run("exec", server.get("runtimes/alpha")["container_id"], "touch", "/www/go")
        for job in jobs:
            ended = wait_for("the job", lambda: (view := server.get(f"jobs/{job}?wait=20s"))["state"] == "succeeded" and view)
            assert ended["result"]["model"] == ended["affinity"], ended
        wait_for("beta in its slot", lambda: "beta" in text(".slots"))
        ask("broken")
        wait_for("the failure", lambda: "container_start_failed" in text("table") and "backoff" in text("table"))
        swaps = lambda pool: (str(pool["swaps_made"]), str(pool["swaps_avoided"]))
        wait_for("the swaps", lambda: (text(".swaps-made"), text(".swaps-avoided")) == swaps(server.get("pools/gpu")))
        assert server.get("pools/gpu")["swaps_avoided"] >= 2, server.get("pools/gpu")
        browser.click("#pool-gpu form button")
        browser.click("#sure-yes")
        wait_for("no pool", lambda: not server.get("pools")["items"])


def queues_without_a_pool_show_how_their_workers_take_turns(driver):
    with Server() as server, Browser(driver) as browser:
        for affinity in ("llama", "mistral", "llama", "phi"):
            server.job("ask", "ask", affinity=affinity)
        worker = server.worker("ask")
        assert server.claim(worker)["affinity"] == "llama"
        browser.open(f"{server.url}/pools")
        text = lambda place: browser.text(f"#affinity-ask {place}")
        wait_for("the next swap", lambda: text(".next-swap").startswith("mistral when the loaded affinities have drained"))
        wait_for("the worker that holds it", lambda: "1 worker" in text("tbody tr:first-child"))
        assert server.claim(worker)["affinity"] == "llama"
        # The page updates without a reload: a job of another affinity was claimed first.
        wait_for("the swap that was avoided", lambda: text(".swaps-avoided") == "1")
        wait_for("the swap to be due", lambda: "as soon as a slot is free" in text(".next-swap"))
        assert server.claim(worker)["affinity"] == "mistral"
        wait_for("the swap that was made", lambda: text(".swaps-made") == "2")
