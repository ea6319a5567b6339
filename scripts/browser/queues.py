"""The pages of a queue, a kind and a worker, and the form that pushes a job."""

import json

from browser.server import Server
from browser.webdriver import Browser, wait_for

# A number of JavaScript cannot hold it exactly.
LONG = 2**53 + 1


def a_queue_has_a_page_with_its_activity_and_settings(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("mail", name="postman")
        for kind in ("welcome", "welcome", "digest"):
            server.job(kind=kind)
            server.settle(worker, server.claim(worker), "finish")
        server.job(kind="digest", max_attempts=1)
        server.settle(worker, server.claim(worker), "fail", error={"code": "BOOM", "message": "the relay is `down`\nat x", "retryable": False})
        server.job()
        server.put("queues/mail", {"timeout_s": 9, "phases": ["sort"], "webhook": {"url": "https://example.com/hook", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
        browser.open(f"{server.url}/queues")
        browser.click("#queue-mail th a")
        wait_for("the page of the queue", lambda: browser.address().endswith("/queues/mail"))
        wait_for("the figures", lambda: browser.text("#queued") == "1")
        browser.shows("Latencies of 4 ended jobs.")
        browser.shows("postman")
        browser.shows("the relay is down")
        # Each chart has its figures as a table for screen readers.
        tables = browser.run("return [...document.querySelectorAll('.unseen caption')].map((caption) => caption.textContent)")
        assert tables == ["Jobs per minute", "Wait before the start", "Run time"], tables
        browser.click('.ranges a[href="?range=24h"]')
        browser.shows("per 24 minutes")
        browser.click('[data-open="settings"]')
        browser.type("#settings [name=concurrency]", "3")
        browser.type("#settings [name=retry]", '{"initial_s": 2}')
        browser.click("#settings button.primary")
        settings = lambda: server.get("queues/mail")["settings"]
        wait_for("the limit", lambda: settings().get("concurrency") == 3)
        assert (settings()["timeout_s"], settings()["phases"], settings()["retry"]["initial_s"]) == (9, ["sort"], 2), settings()
        assert settings()["webhook"]["url"] == "https://example.com/hook", settings()
        browser.shows("at most 3")
        browser.click('[data-open="pause"]')
        browser.type("#pause [name=reason]", "maintenance")
        browser.click("#pause button.primary")
        browser.shows("Paused by local")
        browser.click("#resume button, form[data-call$='/resume'] button")
        wait_for("the queue to go on", lambda: not server.get("queues/mail")["paused"])
        # From a kind to its page, and from a worker to its page.
        browser.click('a[href$="kinds/digest"]')
        browser.shows("Newest jobs")
        browser.shows("BOOM")
        browser.open(f"{server.url}/queues/nothing")
        browser.shows("Go to the overview")


def a_job_is_pushed_with_a_recent_payload(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("mail")
        server.job(payload={"user": LONG})
        server.claim(worker)
        browser.open(f"{server.url}/queues/mail")
        browser.click('[data-open="push"]')
        browser.click("#push [data-put]")
        assert browser.run("return document.querySelector('#push [name=kind]').value") == "welcome"
        browser.click("#push summary")
        browser.type("#push [name=priority]", "7")
        browser.type("#push [name=tags]", "one, two")
        browser.click("#push button.primary")
        wait_for("the page of the job", lambda: "/jobs/" in browser.address())
        pushed = server.claim(worker)
        assert (pushed["payload"], pushed["priority"], browser.address().rsplit("/", 1)[1]) == ({"user": LONG}, 7, pushed["id"])
        assert server.get(f"jobs/{pushed['id']}")["tags"] == ["one", "two"]
        # The listing of jobs has the form, too, with a field for the queue.
        browser.open(f"{server.url}/jobs")
        browser.click('[data-open="push"]')
        browser.type("#push [name=queue]", "other")
        browser.type("#push [name=kind]", "scan")
        browser.type("#push textarea", "{not json")
        browser.click("#push button.primary")
        browser.shows("Invalid JSON")
        browser.type("#push textarea", json.dumps({"image": "api:1"}))
        browser.click("#push button.primary")
        wait_for("the job", lambda: server.get("jobs?queue=other")["items"])
        assert server.get("jobs?queue=other")["items"][0]["payload"] == {"image": "api:1"}


def a_worker_has_a_page_with_its_jobs(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("mail", name="postman")
        job = server.job()
        claimed = server.claim(worker)
        server.put(f"jobs/{job}/signal", {"epoch": claimed["epoch"], "state": "working", "phase": "fetch", "progress": 0.4})
        browser.open(f"{server.url}/workers")
        browser.click(f"#worker-{worker} th a")
        browser.shows("fetch")
        assert browser.has(f'#job-{job}[data-state="working"]')
        server.settle(worker, claimed, "finish")
        browser.shows("The worker holds no job.")
        browser.click("#drain")
        wait_for("the worker to drain", lambda: server.get("workers")["items"][0]["draining"])
        browser.shows("draining")
        browser.click("#remove")
        browser.click("#sure-yes")
        wait_for("the workers", lambda: browser.address().endswith("/workers"))
        assert not server.get("workers")["items"]
