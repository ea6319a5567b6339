"""What is clicked, and what it must have done."""

import http.server
import json
import threading
import time
import urllib.parse

from browser.server import Server, under_a_path
from browser.webdriver import Browser, wait_for

AXE = ""
PICTURES = None
PAGES = [
    "", "jobs", "queues", "workers", "subjects", "failures", "dead-letters", "triggers", "deliveries", "signals", "history", "tokens", "system",
]
# Markup, attribute, script, style and template in one.
POLYGLOT = (
    "jaVasCript:/*-/*`/*'/*\"/**/(window.ran=1 )//</stYle/</titLe/</teXtarEa/</scRipt/--!>"
    "<sVg/oNload=window.ran=2//><img src=x onerror=window.ran=3>{{7*7}}"
)


def a_job_is_canceled_and_retried(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.job()
        browser.open(f"{server.url}/jobs/{job}")
        browser.shows("no live worker serves this queue and kind")
        browser.click("#cancel")
        browser.click("#sure-yes")
        wait_for("the job to be canceled", lambda: server.get(f"jobs/{job}")["state"] == "canceled")
        # The page follows by itself.
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
        browser.shows("This is not JSON")
        browser.type("#edit textarea", '{"user": 8}')
        browser.click("#edit button.primary")
        wait_for("the page of the retry", lambda: job not in browser.address())
        again = browser.address().rsplit("/", 1)[1]
        assert server.get(f"jobs/{again}")["payload"] == {"user": 8}


def a_queue_is_paused_with_a_reason_limited_and_resumed(driver):
    with Server() as server, Browser(driver) as browser:
        server.job()
        server.put("queues/mail", {"timeout_s": 9, "phases": ["sort", "send"]})
        browser.open(f"{server.url}/queues")
        browser.click('[data-open="pause-mail"]')
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
        settings = server.get("queues/mail")["settings"]
        assert (settings["timeout_s"], settings["phases"]) == (9, ["sort", "send"]), settings
        browser.shows("3 at once")
        # The overview has the same action beside what it complains of.
        browser.open(f"{server.url}/")
        browser.shows("mail is paused, 1 job waits")
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
        # Paused, it stays as it is; resumed, it catches up.
        browser.click("#live")
        server.settle(worker, server.claim(worker), "finish")
        late = server.job()
        wait_for("the word", lambda: browser.text("#live-word") == "Paused")
        assert not browser.has(f"#job-{late}")
        browser.click("#live")
        browser.find(f"#job-{late}")
        assert browser.run("return window.mark") == 1


def many_jobs_are_canceled_by_number_unless_undone(driver):
    with Server() as server, Browser(driver) as browser:
        server.post("jobs/batch", {"jobs": [{"queue": "mail", "kind": "welcome"}] * 60 + [{"queue": "other", "kind": "k"}]})
        browser.open(f"{server.url}/jobs?queue=mail")
        waiting = lambda: server.get("queues/mail")["counts"]["queued"]
        browser.click("#pick-all")
        browser.shows("50 chosen")
        browser.click("#bulk-matching")
        browser.shows("60 match and are chosen")
        browser.click('[data-bulk="cancel"]')
        browser.type("#sure-number", "59")
        assert browser.run("return document.getElementById('sure-yes').disabled")
        browser.type("#sure-number", "60")
        browser.click("#sure-yes")
        browser.shows("Canceling 60 jobs in")
        browser.click(".toast button")
        browser.shows("Nothing was done.")
        assert waiting() == 60
        browser.click('[data-bulk="cancel"]')
        browser.type("#sure-number", "60")
        browser.click("#sure-yes")
        wait_for("all to be canceled", lambda: waiting() == 0)
        browser.shows("60 canceled")
        assert server.get("queues/other")["counts"]["queued"] == 1


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
        browser.press("control", "k")
        browser.type(".palette input", job)
        browser.press("enter")
        wait_for("the job", lambda: browser.address().endswith(job))
        browser.press("g")
        browser.press("q")
        wait_for("the queues", lambda: browser.address().endswith("/queues"))
        browser.press("?")
        browser.shows("Keyboard shortcuts")


def dead_letters_are_replayed_exactly_edited_ignored_and_in_bulk(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("broken", name="breaker")
        jobs = []
        for number in range(5):
            jobs.append(server.job("broken", "scan", max_attempts=1))
            error = {"code": "BOOM" if number else "ODD", "message": f"it broke in {number}", "retryable": True}
            server.settle(worker, server.claim(worker), "fail", error=error)
        unresolved = lambda: server.get("dead-letters/count?resolved=false")["count"]
        letters = {letter["job_id"]: letter["id"] for letter in server.get("dead-letters")["items"]}
        browser.open(f"{server.url}/dead-letters")
        browser.shows("5")
        browser.click(f"#letter-{letters[jobs[0]]} .replay")
        wait_for("the first to be played again", lambda: server.get(f"dead-letters/{letters[jobs[0]]}")["resolution"] == "replayed")
        again = server.claim(worker)
        assert (again["kind"], again["payload"]) == ("scan", {"user": 7}), again
        browser.click(f'[data-open="edit-{letters[jobs[1]]}"]')
        browser.type(f"#edit-{letters[jobs[1]]} textarea", '{"user": 9}')
        browser.click(f"#edit-{letters[jobs[1]]} button.primary")
        assert server.claim(worker)["payload"] == {"user": 9}
        browser.click(f'[data-open="ignore-{letters[jobs[2]]}"]')
        browser.type(f"#ignore-{letters[jobs[2]]} input", "known and harmless")
        browser.click(f"#ignore-{letters[jobs[2]]} button.primary")
        wait_for("the third to be let go", lambda: server.get(f"dead-letters/{letters[jobs[2]]}")["note"] == "known and harmless")
        browser.open(f"{server.url}/dead-letters?error_code=BOOM")
        browser.click("#replay-all")
        browser.type("#sure-number", "2")
        browser.click("#sure-yes")
        wait_for("the rest to be played again", lambda: unresolved() == 0)
        assert len([server.claim(worker) for _ in range(2)]) == 2


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
        browser.click("#let-in")
        wait_for("the lockout to be lifted", lambda: not backoffs())


def triggers_are_fired_tried_and_paused(driver):
    with Server() as server, Browser(driver) as browser:
        target = {"job": {"queue": "reports", "kind": "nightly"}}
        trigger = server.post("triggers", {"name": "nightly", "source": "cron", "target": target,
                                           "filter": {"schedule": "0 3 * * *", "timezone": "Europe/Berlin"}})["id"]
        browser.open(f"{server.url}/triggers")
        shown = browser.run("return document.querySelectorAll('article time[data-show=time]').length")
        assert shown == 5, shown
        browser.click(f"#trigger-{trigger} .fire")
        browser.click("#sure-yes")
        wait_for("a job of the trigger", lambda: server.get("jobs?queue=reports")["items"])
        browser.click(f'[data-open="try-{trigger}"]')
        browser.click(f"#try-{trigger} button.primary")
        browser.shows('"matches"')
        assert len(server.get("jobs?queue=reports")["items"]) == 1
        browser.click(f"#trigger-{trigger} .turn")
        wait_for("the trigger to be paused", lambda: not server.get(f"triggers/{trigger}")["enabled"])
        browser.shows("paused")
        browser.click(f"#trigger-{trigger} .turn")
        wait_for("the trigger to go on", lambda: server.get(f"triggers/{trigger}")["enabled"])


def a_failing_group_gets_its_cause_and_is_replayed(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("broken", name="breaker")
        for _ in range(4):
            server.job("broken", "scan", max_attempts=1)
            error = {"code": "BOOM", "message": "layer 3 is not a tar archive", "retryable": False}
            server.settle(worker, server.claim(worker), "fail", error=error)
        group = wait_for("the group", lambda: [g for g in server.get("failures")["items"] if g["signature_id"] and g["count"] == 4])[0]
        browser.open(f"{server.url}/failures")
        browser.click(f'[data-open="cause-{group["group_id"]}"]')
        dialog = f'#cause-{group["group_id"]}'
        browser.type(f'{dialog} [name="outcome.likely_cause"]', "the registry is full")
        browser.click(f"{dialog} button.primary")
        known = lambda: server.get(f"signatures/{group['signature_id']}")
        wait_for("the cause", lambda: known()["outcome"]["likely_cause"] == "the registry is full")
        assert known()["status"] == "confirmed", known()
        browser.shows("the registry is full")
        browser.click(f'#group-{group["group_id"]} form button')
        browser.type("#sure-number", "4")
        browser.click("#sure-yes")
        wait_for("all four again", lambda: server.get("queues/broken")["counts"]["queued"] == 4)


def a_delivery_is_sent_again(driver):
    received = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    with Server("--allow-private") as server, Browser(driver) as browser:
        job = server.job(webhook={"url": f"http://127.0.0.1:{receiver.server_port}/hook"})
        server.post(f"jobs/{job}/cancel")
        wait_for("the first delivery", lambda: server.get("deliveries?state=delivered")["items"])
        delivery = server.get("deliveries?state=delivered")["items"][0]["id"]
        before = len(received)
        browser.open(f"{server.url}/deliveries")
        browser.click(f"#delivery-{delivery} form button")
        wait_for("the receiver to have it again", lambda: len(received) > before)
    receiver.shutdown()
    receiver.server_close()


def people_sign_in_and_out_and_see_what_they_may(driver):
    with Server() as server, Browser(driver) as browser, under_a_path(server.url, "/tools/windlass") as url:
        job = server.job()
        made = lambda role: json.loads(server.cli("token", "create", "--role", role, "--name", role, "--output", "json"))["token"]
        admin, viewer = made("admin"), made("viewer")
        server.token = admin
        browser.open(f"{url}/jobs/{job}")
        wait_for("the door", lambda: "/sign-in" in browser.address())
        browser.type("#token", "windlass_nonsense")
        browser.click("button.primary")
        browser.shows("unknown")
        browser.type("#token", viewer)
        browser.click("button.primary")
        wait_for("the page that was asked for", lambda: browser.address() == f"{url}/jobs/{job}")
        assert not browser.has("[data-call]") and not browser.has('#places a[data-key="k"]')
        # The server checks as well.
        told = browser.run_async(
            "const done = arguments[1]; fetch(arguments[0], {method: 'POST'}).then((answer) => done(answer.status))",
            f"{url}/api/v1/jobs/{job}/cancel",
        )
        assert told == 403, told
        browser.click('form[action$="sign-out"] button')
        wait_for("the door", lambda: "/sign-in" in browser.address())
        browser.open(f"{url}/tokens")
        browser.type("#token", admin)
        browser.click("button.primary")
        browser.click('[data-open="new-token"]')
        browser.type("#new-token [name=name]", "ci")
        browser.click("#new-token button.primary")
        browser.shows("shown this once")
        fresh = browser.text("#made code")
        assert fresh.startswith("windlass_")
        server.token = fresh
        assert server.get("jobs?limit=1")["items"]
        server.token = admin
        revoke = [token["id"] for token in server.get("tokens")["items"] if token["name"] == "ci"][0]
        browser.click(f"#token-{revoke} form button")
        browser.click("#sure-yes")
        wait_for("the token to be revoked", lambda: [t for t in server.get("tokens")["items"] if t["id"] == revoke][0]["state"] == "revoked")


def times_are_local_with_utc_beside_and_the_page_tells_its_own_first_signal(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.job()
        browser.open(f"{server.url}/jobs/{job}")
        shown, utc, title = browser.run(
            "const t = document.querySelector('.facts time'); return [t.textContent, t.dateTime, t.title]"
        )
        hour = int(utc[11:13])
        assert title.endswith("UTC") and shown != title, (shown, title)
        assert any(f"{(hour + ahead) % 24:02}:" in shown for ahead in (1, 2)), (shown, utc)
        told = lambda: [item for item in server.get("ttfs/slo")["items"] if item["surface"] == "ui"]
        wait_for("the page's own first signal", told)


def nothing_that_came_from_a_user_runs(driver):
    with Server() as server, Browser(driver) as browser:
        pages = things_with_polyglots(server)
        for width in (1280, 390):
            browser.size(width, 900)
            for page in pages:
                browser.open(f"{server.url}/{page}")
                browser.run("return new Promise((done) => setTimeout(done, 300))")
                assert browser.run("return window.ran") is None, page
                assert not browser.has("svg[onload], img[onerror], img[src=x], main script"), page
                wide = browser.run("return document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"/{page} is {wide} px too wide at {width}"
                for entry in browser.log():
                    assert entry["level"] != "SEVERE", (page, entry)


def things_with_polyglots(server):
    """A polyglot in every field that takes one; gives the pages to look at."""
    name = POLYGLOT[:100]
    job = server.job(affinity=name, subject=name, run=name, tags=[name], unique_key=name, concurrency_key=name)
    server.post("jobs", {"queue": "q", "kind": "k", "payload": {POLYGLOT: [POLYGLOT, {POLYGLOT: POLYGLOT}]}})
    worker = server.post("workers", {"name": name, "queues": ["q"], "affinities": [name]})["id"]
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
    server.post("triggers", {"name": name, "source": "pubsub", "filter": {"topic": "*"}, "target": target})
    server.post(f"topics/{subject}", {"x": POLYGLOT})
    server.job(webhook={"url": "http://127.0.0.1:9/" + urllib.parse.quote(POLYGLOT)})
    wait_for("the group of failures", lambda: server.get("failures")["items"])
    return [*PAGES, f"jobs/{job}", f"jobs/{broken}", f"subjects/{subject}"]


def pages_work_under_a_path(driver):
    with Server() as server, Browser(driver) as browser, under_a_path(server.url, "/tools/windlass") as url:
        job = server.job()
        browser.open(f"{url}/")
        browser.click('#places a[data-key="j"]')
        browser.click(f"#job-{job} a.id")
        wait_for("the job's page", lambda: browser.address() == f"{url}/jobs/{job}")
        browser.click("#cancel")
        browser.click("#sure-yes")
        wait_for("the job to be canceled", lambda: server.get(f"jobs/{job}")["state"] == "canceled")
        browser.find("#retry")
        assert not [entry for entry in browser.log() if entry["level"] == "SEVERE"]


def pages_are_accessible_in_both_themes(driver):
    with Server() as server, Browser(driver) as browser:
        pages = full(server)
        for theme in ("light", "dark"):
            browser.theme(theme)
            for page in pages:
                browser.open(f"{server.url}/{page}")
                browser.find("#main")
                browser.run(AXE)
                found = browser.run_async("const done = arguments[0]; axe.run().then((r) => done(r.violations)).catch((e) => done([{id: String(e), nodes: []}]))")
                told = [(rule["id"], [node["html"][:160] for node in rule["nodes"][:3]]) for rule in found]
                assert not told, f"/{page} in {theme}: {told}"


def full(server):
    """A little of everything; gives the pages to look at."""
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
    server.post("triggers", {"name": "nightly", "source": "cron", "filter": {"schedule": "0 3 * * *"}, "target": target})
    server.job("hooked", webhook={"url": "http://127.0.0.1:9/hook"})
    event = {"job_id": failed, "surface": "ui", "event_type": "signal.rendered", "ttfs_ms": 140, "cache_hit": True}
    server.post("ttfs/events", {"events": [event]})
    wait_for("the group of failures", lambda: server.get("failures")["items"])
    return [*PAGES, f"jobs/{failed}", f"jobs/{waiting}", f"jobs/{claimed['id']}", "subjects/web-01"]


def every_page_has_its_picture(driver):
    if PICTURES is None:
        return
    PICTURES.mkdir(parents=True, exist_ok=True)
    with Server("--demo") as server, Browser(driver) as browser:
        wait_for("something to have failed", lambda: server.get("jobs?state=failed&limit=1")["items"], 60)
        failed = server.get("jobs?state=failed&limit=1")["items"][0]["id"]
        full(server)
        pages = {page or "overview": page for page in PAGES}
        pages |= {"job": f"jobs/{failed}", "subject": "subjects/web-01"}
        for theme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
            browser.theme(theme)
            browser.size(width, 900)
            for name, page in pages.items():
                browser.open(f"{server.url}/{page}")
                browser.run("return new Promise((done) => setTimeout(done, 400))")
                browser.picture(PICTURES / f"{name}-{'phone' if width < 600 else theme}.png")


ALL = [
    a_job_is_canceled_and_retried,
    a_failed_job_is_edited_and_retried,
    a_queue_is_paused_with_a_reason_limited_and_resumed,
    pages_are_live_without_a_reload_and_in_two_tabs,
    many_jobs_are_canceled_by_number_unless_undone,
    filters_views_palette_and_keys,
    dead_letters_are_replayed_exactly_edited_ignored_and_in_bulk,
    workers_are_drained_and_removed,
    a_subject_is_locked_out_and_let_in,
    triggers_are_fired_tried_and_paused,
    a_failing_group_gets_its_cause_and_is_replayed,
    a_delivery_is_sent_again,
    people_sign_in_and_out_and_see_what_they_may,
    times_are_local_with_utc_beside_and_the_page_tells_its_own_first_signal,
    nothing_that_came_from_a_user_runs,
    pages_work_under_a_path,
    pages_are_accessible_in_both_themes,
    every_page_has_its_picture,
]
