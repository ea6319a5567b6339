"""Jobs and queues: the effect of each control."""

from pathlib import Path

from browser.server import Server
from browser.webdriver import Browser, wait_for


def a_job_is_canceled_and_retried(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.job()
        browser.open(f"{server.url}/jobs/{job}")
        browser.shows("no live worker serves this queue and kind")
        browser.click("#cancel")
        browser.click("#sure-yes")
        wait_for("the job to be canceled", lambda: server.get(f"jobs/{job}")["state"] == "canceled")
        # The page updates without a reload.
        browser.click("#retry")
        wait_for("the page of the retry", lambda: job not in browser.address())
        again = browser.address().rsplit("/", 1)[1]
        assert server.get(f"jobs/{again}")["parent"] == job


def a_failed_job_is_edited_and_retried(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.failed_job()
        browser.open(f"{server.url}/jobs/{job}")
        browser.shows("it broke in two")
        browser.click("#edit-retry")
        browser.type("#edit textarea", "{not json")
        browser.click("#edit button.primary")
        browser.shows("Invalid JSON")
        # More digits than a number of JavaScript can hold.
        browser.type("#edit textarea", '{"user": 9007199254740993}')
        browser.click("#edit button.primary")
        wait_for("the page of the retry", lambda: job not in browser.address())
        again = browser.address().rsplit("/", 1)[1]
        assert server.get(f"jobs/{again}")["payload"] == {"user": 9007199254740993}


def a_queue_is_paused_with_a_reason_limited_and_resumed(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.job()
        server.put("queues/mail", {"timeout_s": 9, "phases": ["sort", "send"]})
        browser.open(f"{server.url}/queues")
        browser.click('[data-open="pause-mail"]')
        browser.type("#pause-mail input", "never mind")
        browser.click("#pause-mail [data-close]")
        browser.click('[data-open="pause-mail"]')
        assert browser.run("return document.querySelector('#pause-mail input').value") == ""
        browser.type("#pause-mail input", "the relay is down")
        browser.click("#pause-mail button.primary")
        wait_for("the queue to be paused", lambda: server.get("queues/mail")["paused"])
        assert server.get("queues/mail")["paused_reason"] == "the relay is down"
        browser.shows("the relay is down")
        browser.click('[data-open="limits-mail"]')
        browser.type("#limits-mail [name=concurrency]", "0")
        browser.run("document.querySelector('#limits-mail [name=concurrency]').min = ''")
        browser.click("#limits-mail button.primary")
        browser.shows("concurrency must be")
        browser.type("#limits-mail [name=concurrency]", "3")
        browser.click("#limits-mail button.primary")
        wait_for("the limit", lambda: server.get("queues/mail")["settings"].get("concurrency") == 3)
        # Changing the limits of a queue keeps its webhook.
        webhook = {"url": "https://example.com/hook", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
        server.put("queues/hooked", {"webhook": webhook})
        browser.open(f"{server.url}/queues")
        browser.click('[data-open="limits-hooked"]')
        browser.type("#limits-hooked [name=concurrency]", "2")
        browser.click("#limits-hooked button.primary")
        hooked = lambda: server.get("queues/hooked")["settings"]
        wait_for("its limit", lambda: hooked().get("concurrency") == 2)
        assert hooked()["webhook"]["url"] == webhook["url"], hooked()
        settings = server.get("queues/mail")["settings"]
        assert (settings["timeout_s"], settings["phases"]) == (9, ["sort", "send"]), settings
        browser.shows("3 concurrent")
        # The page of a job that waits for the queue can resume the queue.
        browser.open(f"{server.url}/jobs/{job}")
        browser.click('[data-call$="/resume"] button')
        wait_for("the queue to go on", lambda: not server.get("queues/mail")["paused"])
        server.post("queues/mail/pause", {"reason": "once more"})
        # The overview has the same action beside its warning.
        browser.open(f"{server.url}/")
        browser.shows("mail is paused, 1 job queued")
        browser.click(".concerns form button")
        wait_for("the queue to go on", lambda: not server.get("queues/mail")["paused"])
        browser.shows("no worker serves it")


def pages_are_live_without_a_reload_and_in_two_tabs(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.job()
        browser.open(f"{server.url}/jobs/{job}")
        browser.run("window.mark = 1")
        first = browser.tabs()[0]
        second = browser.new_tab()
        browser.open(f"{server.url}/jobs")
        browser.run("window.mark = 1")
        other = server.job()
        browser.find(f"#job-{other}")
        worker = server.worker("mail")
        claimed = server.claim(worker)
        assert claimed["id"] == job
        server.put(f"jobs/{job}/signal", {"epoch": claimed["epoch"], "summary": "half of it is done", "progress": 0.5, "state": "working"})
        wait_for("the row to work", lambda: browser.has(f'#job-{job}[data-state="working"]'))
        browser.tab(first)
        browser.shows("half of it is done")
        server.settle(worker, claimed, "finish", result={"sent": True})
        browser.shows("succeeded")
        browser.find("#retry")
        assert browser.run("return window.mark") == 1
        browser.tab(second)
        wait_for("the row to be done", lambda: browser.has(f'#job-{job}[data-state="succeeded"]'))
        # A paused page does not change. A resumed page shows what it missed.
        browser.click("#live")
        server.settle(worker, server.claim(worker), "finish")
        late = server.job()
        wait_for("the word", lambda: browser.text("#live-word") == "Paused")
        assert not browser.has(f"#job-{late}")
        browser.click("#live")
        browser.find(f"#job-{late}")
        assert browser.run("return window.mark") == 1


WATCH = """
    window.seen = [];
    document.addEventListener("windlass:live", (event) => seen.push({ live: event.detail, hidden: document.hidden }));
    const real = window.fetch;
    window.fetch = (...asked) => { seen.push({ fetched: true, hidden: document.hidden }); return real(...asked); };
"""


def a_hidden_page_pauses_and_updates_when_it_is_shown(driver):
    with Server() as server, Browser(driver) as browser:
        browser.open(f"{server.url}/jobs")
        browser.run(WATCH)
        first = browser.tabs()[0]
        browser.new_tab()
        browser.open(f"{server.url}/jobs")
        job = server.job()
        # The visible tab has received the change, so the hidden one would have, too.
        browser.find(f"#job-{job}")
        browser.tab(first)
        browser.command("Page.bringToFront", {})
        browser.find(f"#job-{job}")
        seen = browser.run("return seen")
        assert {"live": False, "hidden": True} in seen, seen
        assert not [one for one in seen if one.get("fetched") and one["hidden"]], seen


# Clicks the next Undo button as soon as it appears. It is shown for five seconds, which is short on a busy machine.
UNDO = """
    window.offer = "";
    new MutationObserver((_, watch) => {
        const button = document.querySelector(".toast button");
        if (!button) return;
        watch.disconnect();
        offer = button.parentElement.innerText;
        button.click();
    }).observe(document.body, { childList: true, subtree: true });
"""


def a_page_whose_server_is_gone_says_since_when(driver):
    with Server() as server, Browser(driver) as browser:
        server.job()
        browser.open(f"{server.url}/jobs")
        browser.find("#live:not(.lost)")
        server.process.kill()
        browser.shows("No connection since")
        browser.find("#live.lost")


# After the next start the server refuses every stream.
REFUSE = """
    window.lost = false;
    window.fresh = 0;
    const live = document.getElementById("live");
    new MutationObserver(() => { lost ||= live.classList.contains("lost"); }).observe(live, { attributes: true });
    window.EventSource = class extends EventTarget {
        constructor() {
            super();
            setTimeout(() => {
                this.dispatchEvent(new Event("error"));
                document.addEventListener("windlass:fresh", () => { fresh += 1; });
            });
        }
        close() {}
    };
"""


def a_page_that_is_fetched_is_connected_whatever_its_stream_does(driver):
    with Server() as server, Browser(driver) as browser:
        browser.open(f"{server.url}/jobs")
        browser.find("#live:not(.lost)")
        browser.click("#live")
        browser.run(REFUSE)
        browser.click("#live")
        wait_for("the page to be fetched after that", lambda: browser.run("return fresh"))
        assert not browser.run("return lost")


def many_jobs_are_canceled_by_number_unless_undone(driver):
    with Server() as server, Browser(driver) as browser:
        server.post("jobs/batch", {"jobs": [{"queue": "mail", "kind": "welcome"}] * 60 + [{"queue": "other", "kind": "k"}]})
        browser.open(f"{server.url}/jobs?queue=mail")
        waiting = lambda: server.get("queues/mail")["counts"]["queued"]
        browser.click("#pick-all")
        browser.shows("50 selected")
        browser.click("#bulk-matching")
        browser.shows("All 60 matching jobs selected")
        browser.click('[data-bulk="cancel"]')
        browser.type("#sure-number", "59")
        assert browser.run("return document.getElementById('sure-yes').disabled")
        browser.type("#sure-number", "60")
        browser.run(UNDO)
        browser.click("#sure-yes")
        assert "Canceling 60 jobs in" in wait_for("the offer to undo it", lambda: browser.run("return offer"))
        browser.said("No jobs were changed.")
        assert waiting() == 60
        browser.click('[data-bulk="cancel"]')
        browser.type("#sure-number", "60")
        browser.click("#sure-yes")
        wait_for("all to be canceled", lambda: waiting() == 0)
        browser.said("60 canceled")
        assert server.get("queues/other")["counts"]["queued"] == 1


def the_bulk_bar_offers_what_the_selected_jobs_allow(driver):
    with Server() as server, Browser(driver) as browser:
        failed, live = server.failed_job(), server.job()
        browser.open(f"{server.url}/jobs")
        offered = lambda: browser.run("return [...document.querySelectorAll('[data-bulk]:not([hidden])')].map((button) => button.textContent)")
        browser.click(f"#job-{failed} input")
        assert offered() == ["Retry 1 job", "Replay dead letters of 1 job"], offered()
        browser.click(f"#job-{live} input")
        assert offered() == ["Cancel 1 job", "Retry 1 job", "Replay dead letters of 1 job"], offered()
        browser.click('[data-bulk="cancel"]')
        browser.click("#sure-yes")
        wait_for("the live job to be canceled", lambda: server.get(f"jobs/{live}")["state"] == "canceled")
        browser.said("1 canceled.")
        assert server.get(f"jobs/{failed}")["state"] == "failed"


def a_search_says_how_far_it_went_and_goes_on(driver):
    with Server() as server, Browser(driver) as browser:
        first = server.job(payload={"word": "needle"})
        for _ in range(3):
            server.post("jobs/batch", {"jobs": [{"queue": "mail", "kind": "welcome", "payload": {"word": "hay"}}] * 2000})
        browser.open(f"{server.url}/jobs?text=needle")
        browser.shows("payloads and messages of the newest ones, back to")
        assert not browser.has(f"#job-{first}")
        browser.click("#search-on")
        browser.find(f"#job-{first}")


def a_row_that_comes_to_an_empty_list_can_be_chosen(driver):
    with Server() as server, Browser(driver) as browser:
        browser.open(f"{server.url}/jobs")
        browser.shows("No jobs yet")
        job = server.job()
        browser.click(f"#job-{job} input")
        browser.shows("1 selected")


def many_failed_jobs_are_retried_or_their_letters_replayed(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("broken", name="breaker")
        for _ in range(6):
            server.job("broken", "scan", max_attempts=1)
            error = {"code": "BOOM", "message": "it broke", "retryable": False}
            server.settle(worker, server.claim(worker), "fail", error=error)
        failed = [job["id"] for job in server.get("jobs?state=failed")["items"]]
        browser.open(f"{server.url}/jobs?state=failed")
        for job in failed[:2]:
            browser.click(f"#job-{job} input")
        browser.click('[data-bulk="retry"]')
        browser.type("#sure-number", "2")
        browser.click("#sure-yes")
        browser.said("2 retried")
        parents = {server.get(f"jobs/{server.claim(worker)['id']}")["parent"] for _ in range(2)}
        assert parents == set(failed[:2]), parents
        # Replays the letters of the other jobs with one action. A retried job has a letter, too.
        browser.click("#pick-all")
        browser.click("#bulk-matching")
        browser.shows("All 6 matching jobs selected")
        unresolved = server.get("dead-letters/count?resolved=false")["count"]
        browser.click('[data-bulk="replay"]')
        browser.type("#sure-number", "6")
        browser.click("#sure-yes")
        wait_for("no letter to be left", lambda: server.get("dead-letters/count?resolved=false")["count"] == 0)
        browser.said(f"{unresolved} replayed")
        again = [server.claim(worker) for _ in range(unresolved)]
        assert {job["kind"] for job in again} == {"scan"} and len({job["id"] for job in again}) == unresolved


def the_log_of_a_job_is_followed_while_it_runs_and_kept_after(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.job("slow")
        first, second = (Path(server.folder.name) / name for name in ("first", "second"))
        wait = "while [ ! -e {} ]; do sleep 0.1; done".format
        script = f"echo 'one <b>bold</b>' >&2; {wait(first)}; echo two >&2; {wait(second)}; echo three >&2"
        with server.work("slow", script):
            browser.open(f"{server.url}/jobs/{job}")
            browser.run("window.mark = 1")
            wait_for("the first line", lambda: browser.has("#live-log") and browser.text("#live-log") == "one <b>bold</b>")
            assert server.get(f"jobs/{job}")["state"] == "working"
            first.touch()
            wait_for("the second line", lambda: browser.text("#live-log").endswith("two"))
            assert server.get(f"jobs/{job}")["state"] == "working"
            second.touch()
            wait_for("the end", lambda: server.get(f"jobs/{job}")["state"] == "succeeded")
        wait_for("the kept log", lambda: browser.has("#stored-log") and browser.text("#stored-log").split("\n")[-1] == "three")
        assert browser.run("return window.mark") == 1


def filters_views_palette_and_keys(driver):
    with Server() as server, Browser(driver) as browser:
        server.job(tags=["nightly"])
        job = server.job("scans", "image.scan", subject="registry/api:1.4")
        browser.open(f"{server.url}/jobs")
        browser.type("[name=queue]", "scans")
        browser.click("#filter > button")
        wait_for("one row", lambda: browser.run("return document.querySelectorAll('#jobs tbody tr').length") == 1)
        assert "queue=scans" in browser.address()
        browser.click("#save-view")
        browser.shows("★ scans")
        browser.open(f"{server.url}/jobs")
        browser.click("#views a")
        wait_for("the view", lambda: "queue=scans" in browser.address())
        browser.click(".chips a.chip")
        wait_for("no filter", lambda: "queue=scans" not in browser.address())
        trigger = {"name": "nightly", "source": "pubsub", "filter": {"topic": "t"}, "target": {"job": {"queue": "q", "kind": "k"}}}
        trigger = server.post("triggers", trigger)["id"]
        browser.press("control", "k")
        browser.type(".palette input", "nightl")
        wait_for("the trigger", lambda: "trigger" in browser.text("#found-0"))
        browser.press("enter")
        wait_for("its page", lambda: browser.address().endswith(f"/triggers/{trigger}"))
        browser.press("control", "k")
        browser.type(".palette input", job)
        browser.press("enter")
        wait_for("the job", lambda: browser.address().endswith(job))
        # The page waits for the second key without the normal limit of 1.5 s.
        browser.run("const real = setTimeout; window.setTimeout = (act, after_ms) => real(act, 1000 * after_ms)")
        browser.press_in_turn("g", "q")
        wait_for("the queues", lambda: browser.address().endswith("/queues"))
        browser.press("?")
        browser.shows("Keyboard shortcuts")
