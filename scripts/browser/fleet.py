"""Workers, subjects, and runtimes on a real Docker engine."""

from browser.server import Server
from browser.webdriver import Browser, wait_for


def workers_are_drained_and_removed(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("mail", name="old-one")
        job = server.job()
        server.claim(worker)
        browser.open(f"{server.url}/workers")
        browser.shows("old-one")
        browser.click(f"#worker-{worker} form button")
        wait_for("the worker to drain", lambda: server.get("workers")["items"][0]["draining"])
        browser.shows("draining")
        browser.click(f"#worker-{worker} button.quiet")
        browser.click("#sure-yes")
        wait_for("its job to be back", lambda: server.get(f"jobs/{job}")["state"] == "queued")
        assert server.get(f"jobs/{job}")["attempt"] == 0
        browser.shows("No worker is registered")


def a_subject_is_locked_out_and_let_in(driver):
    with Server() as server, Browser(driver) as browser:
        server.put("subjects/web-01", {"kind": "machine", "facts": {"os": "debian12"}})
        selector = {"all": [{"fact": "os", "exists": True}]}
        server.put("processes/patch", {"selector": selector, "queue": "fleet", "kind": "patch"})
        browser.open(f"{server.url}/subjects")
        browser.click("#subject-web-01 a")
        browser.click("#lock")
        browser.type("#lock-out [name=cause]", "the disk smokes")
        browser.click("#lock-out button.primary")
        backoffs = lambda: server.get("subjects/web-01")["backoffs"]
        wait_for("the lockout", lambda: [b for b in backoffs() if b["cause"] == "the disk smokes" and b["process"] == "*"])
        browser.shows("the disk smokes")
        browser.open(f"{server.url}/history")
        browser.shows("the disk smokes")
        browser.open(f"{server.url}/subjects/web-01")
        browser.click("#clear-lockout")
        wait_for("the lockout to be lifted", lambda: not backoffs())
        # The row of a backoff has a button that removes it. Until then its cell in the grid is marked.
        server.put("subjects/web-01/backoffs/patch", {"for_s": 90000, "cause": "the mirror is stale"})
        browser.open(f"{server.url}/subjects")
        browser.find("#subject-web-01 .heat-3")
        browser.open(f"{server.url}/subjects/web-01")
        browser.click('[data-call$="/backoffs/patch"] button')
        wait_for("the backoff to be lifted", lambda: not backoffs())
        # The page of a removed worker shows the removal without a reload.
        server.put("subjects/web-02", {"facts": {"site": "cellar"}})
        browser.open(f"{server.url}/subjects/web-02")
        server.ask("DELETE", "/api/v1/subjects/web-02")
        browser.shows("Go to the overview")
