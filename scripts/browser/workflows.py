"""Runs, their graphs, and the journal of a job."""

from browser.server import Server
from browser.webdriver import Browser, wait_for


def record(server, worker, job, *ops):
    """Records operations in the journal of a claimed job."""
    write = {"job_id": job["id"], "epoch": job["epoch"], "ops": list(ops)}
    results = server.post(f"workers/{worker}/journal", {"writes": [write]})["results"]
    assert results[0]["status"] == "applied", results


def pipeline(server, width=3, **more):
    """Starts split → parts → join, and returns the run's id and its jobs by node."""
    parts = [f"part-{number}" for number in range(width)]
    nodes = [{"name": "split", "queue": "ci", "kind": "split"}]
    nodes += [{"name": part, "queue": "ci", "kind": "part", "needs": ["split"]} for part in parts]
    nodes += [{"name": "join", "queue": "ci", "kind": "join", "needs": parts}]
    accepted = server.post("runs", {"name": "release", "tags": ["nightly"], "nodes": nodes, **more})
    return accepted["id"], accepted["nodes"]


def waiting_for_approval(server, right="operate"):
    """Creates a suspended job with finished steps, a failed attempt, and an open approval."""
    worker = server.worker("flow", name="flow-worker")
    job = server.job("flow", "release", payload={"version": 7})
    claimed = server.claim(worker)
    error = {"code": "TIMEOUT", "message": "the registry did not answer", "retryable": True}
    record(server, worker, claimed, {"op": "step", "key": "build", "result": {"image": "api:7"}, "duration_ms": 1200})
    record(server, worker, claimed, {"op": "step", "key": "push", "error": error})
    record(server, worker, claimed, {"op": "step", "key": "push", "result": True, "attempt": 2, "duration_ms": 300})
    ask = {"op": "approval", "key": "deploy/ok", "title": "Deploy version 7?", "detail": "To all sites.", "right": right, "timeout_s": 86400}
    record(server, worker, claimed, {"op": "event", "key": "paid", "name": "order.paid"}, ask)
    server.settle(worker, claimed, "suspend", wake={"any": ["deploy/ok"]})
    assert server.get(f"jobs/{job}")["state"] == "waiting"
    return worker, job


def a_run_is_drawn_followed_canceled_and_retried(driver):
    with Server() as server, Browser(driver) as browser:
        run, jobs = pipeline(server)
        browser.open(f"{server.url}/runs")
        browser.click(f"#run-{run} a")
        browser.shows("0 of 5 jobs ended")
        browser.run("window.mark = 1")
        boxes = lambda state: browser.run("return document.querySelectorAll(`svg.graph .node-${arguments[0]}`).length", state)
        assert (boxes("queued"), boxes("waiting")) == (1, 4)
        worker = server.worker("ci")
        claimed = server.claim(worker)
        server.put(f"jobs/{claimed['id']}/signal", {"epoch": claimed["epoch"], "state": "working", "phase": "analyze", "progress": 0.5})
        wait_for("the working node", lambda: boxes("working") == 1)
        server.settle(worker, claimed, "finish", result=[1, 2, 3])
        wait_for("the parts to be queued", lambda: boxes("queued") == 3 and boxes("succeeded") == 1)
        browser.find(f'#node-{jobs["split"]}[data-state="succeeded"] rect.good')
        # The page of a waiting node says what it waits for, and links to the run.
        browser.click(f'svg.graph a[href$="/jobs/{jobs["join"]}"]')
        browser.shows("waits for part-0 (3 of 3 needs left)")
        browser.click(f'.facts a[href$="/runs/{run}"]')
        browser.find("#cancel")
        browser.click("#cancel")
        browser.click("#sure-yes")
        wait_for("the run to be canceled", lambda: server.get(f"runs/{run}")["state"] == "canceled")
        browser.click("#retry")
        wait_for("the page of the retry", lambda: run not in browser.address())
        again = browser.address().rsplit("/", 1)[1]
        assert server.get(f"runs/{again}")["parent"] == run
        browser.open(f"{server.url}/runs?state=canceled&tag=nightly")
        assert browser.has(f"#run-{run}") and not browser.has(f"#run-{again}")


def a_run_has_an_estimate_once_its_kinds_have_run(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("ci")
        # An estimate needs five samples of each kind.
        for _ in range(5):
            done, _ = pipeline(server, width=1)
            while server.get(f"runs/{done}")["state"] == "running":
                server.settle(worker, server.claim(worker), "finish", result=1)
        run, _ = pipeline(server, width=2)
        browser.open(f"{server.url}/runs/{run}")
        wait_for("the estimate", lambda: browser.has("#eta") and browser.text("#eta").startswith("ETA "))
        server.post(f"runs/{run}/cancel")
        wait_for("no estimate after the end", lambda: not browser.has("#eta"))


def a_wide_run_is_one_box_and_its_rows_are_bounded(driver):
    with Server() as server, Browser(driver) as browser:
        run, _ = pipeline(server, width=1000)
        browser.open(f"{server.url}/runs/{run}")
        browser.shows("1,000 × part")
        shown = browser.run("return [document.querySelectorAll('svg.graph .box').length, document.querySelectorAll('.waterfall tbody tr').length]")
        assert shown == [3, 200], shown
        browser.shows("802 more nodes")
        browser.click('svg.graph a[href*="kind=part"]')
        wait_for("the jobs of the box", lambda: "kind=part" in browser.address() and browser.has("#jobs"))


def an_approval_is_given_and_a_step_forked_on_the_page_of_the_job(driver):
    with Server() as server, Browser(driver) as browser:
        worker, job = waiting_for_approval(server)
        browser.open(f"{server.url}/jobs/{job}")
        browser.shows("Waits for approval: Deploy version 7?")
        browser.shows("Waits for event order.paid")
        assert browser.has("#step-2 rect.bad"), "the failed attempt is marked"
        browser.click("#step-details-2 summary")
        browser.shows("the registry did not answer")
        approval = browser.run("return document.querySelector('[data-open^=approve]').dataset.open")
        browser.click(f'[data-open="{approval}"]')
        browser.type(f"#{approval} [name=note]", "after lunch")
        browser.click(f"#{approval} button.primary")
        wait_for("the job to be queued", lambda: server.get(f"jobs/{job}")["state"] == "queued")
        answer = server.get(f"jobs/{job}/journal")["items"][-1]["result"]
        assert (answer["approved"], answer["note"]) == (True, "after lunch"), answer
        browser.shows("approved")
        assert not browser.has('[data-open^="approve"]')
        # A fork keeps the steps before the selected one.
        browser.click('#step-2 [data-open="fork"]')
        assert browser.run("return document.querySelector('#fork select').value") == "push"
        browser.type("#fork textarea", '{"version": 8}')
        browser.click("#fork button.primary")
        wait_for("the page of the fork", lambda: job not in browser.address())
        fork = browser.address().rsplit("/", 1)[1]
        assert [entry["key"] for entry in server.get(f"jobs/{fork}/journal")["items"]] == ["build"]
        assert server.get(f"jobs/{fork}")["payload"] == {"version": 8}


def an_approval_is_rejected_with_its_right_only(driver):
    with Server() as server, Browser(driver) as browser:
        _, job = waiting_for_approval(server)
        browser.open(f"{server.url}/jobs/{job}")
        rejection = browser.run("return document.querySelector('[data-open^=reject]').dataset.open")
        browser.click(f'[data-open="{rejection}"]')
        browser.click(f"#{rejection} button.danger")
        wait_for("the answer", lambda: server.get(f"jobs/{job}/journal")["items"][-1]["status"] == "resolved")
        assert not server.get(f"jobs/{job}/journal")["items"][-1]["result"]["approved"]
        browser.shows("rejected")


def a_long_journal_has_pages(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("flow")
        job = server.job("flow")
        claimed = server.claim(worker)
        record(server, worker, claimed, *[{"op": "step", "key": f"step-{number}", "result": number} for number in range(150)])
        browser.open(f"{server.url}/jobs/{job}")
        browser.shows("150 of 150 steps done")
        rows = lambda: browser.run("return document.querySelectorAll('#journal-table tbody tr').length")
        assert rows() == 100
        browser.click("#journal-table ~ .pager a, section[aria-labelledby=journal] .pager a")
        wait_for("the last steps", lambda: rows() == 50)
        browser.shows("step-149")
