"""Triggers, deliveries, failures and dead letters."""

import http.server
import json
import threading

from browser.server import Server
from browser.webdriver import Browser, wait_for

# A number of JavaScript cannot hold it exactly.
LONG = 2**53 + 1


def dead_letters_are_replayed_exactly_edited_ignored_and_in_bulk(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("broken", name="breaker")
        jobs = []
        for number in range(5):
            jobs.append(server.job("broken", "scan", max_attempts=1, payload={"user": LONG if number == 1 else 7}))
            error = {"code": "BOOM" if number else "ODD", "message": f"it broke in {number}", "retryable": True}
            server.settle(worker, server.claim(worker), "fail", error=error)
        unresolved = lambda: server.get("dead-letters/count?resolved=false")["count"]
        letters = {letter["job_id"]: letter["id"] for letter in server.get("dead-letters")["items"]}
        browser.open(f"{server.url}/dead-letters")
        browser.shows("5")
        browser.click(f"#letter-{letters[jobs[0]]} .replay")
        wait_for("the first to be played again", lambda: server.get(f"dead-letters/{letters[jobs[0]]}")["resolution"] == "replayed")
        # The notification links to the new job.
        browser.click(".toast button")
        again = server.get(f"dead-letters/{letters[jobs[0]]}")["replayed_as"]
        wait_for("its job", lambda: browser.address().endswith(f"/jobs/{again}"))
        browser.open(f"{server.url}/dead-letters")
        wait_for("its row to be gone", lambda: not browser.has(f"#letter-{letters[jobs[0]]}"))
        again = server.claim(worker)
        assert (again["kind"], again["payload"]) == ("scan", {"user": 7}), again
        edit = f"#edit-{letters[jobs[1]]}"
        browser.click(f'[data-open="edit-{letters[jobs[1]]}"]')
        payload = wait_for("its payload", lambda: browser.run("return document.querySelector(arguments[0]).value", f"{edit} textarea"))
        assert json.loads(payload) == {"user": LONG}, payload
        browser.type(f"{edit} textarea", f'{{"user": {LONG + 2}}}')
        browser.click(f"{edit} button.primary")
        assert server.claim(worker)["payload"] == {"user": LONG + 2}
        browser.click(f'[data-open="ignore-{letters[jobs[2]]}"]')
        browser.type(f"#ignore-{letters[jobs[2]]} input", "known and harmless")
        browser.click(f"#ignore-{letters[jobs[2]]} button.primary")
        wait_for("the third to be let go", lambda: server.get(f"dead-letters/{letters[jobs[2]]}")["note"] == "known and harmless")
        browser.open(f"{server.url}/dead-letters?error_code=BOOM")
        browser.click("#replay-all")
        browser.type("#sure-number", "2")
        browser.click("#sure-yes")
        wait_for("the rest to be played again", lambda: unresolved() == 0)
        browser.said("2 replayed")
        assert len([server.claim(worker) for _ in range(2)]) == 2


def dead_letters_are_grouped_and_resolved_or_replayed_as_a_group(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("broken", name="breaker")
        trace = "it broke\n" + "\n".join(f"  at line {number}" for number in range(40))
        for code in ["BOOM"] * 3 + ["ODD"] * 2:
            server.job("broken", "scan", max_attempts=1)
            server.settle(worker, server.claim(worker), "fail", error={"code": code, "message": trace, "retryable": True})
        unresolved = lambda code: server.get(f"dead-letters/count?resolved=false&error_code={code}")["count"]
        browser.open(f"{server.url}/dead-letters")
        rows = browser.run("return [...document.querySelectorAll('#groups tbody tr')].map((row) => row.cells[1].textContent + row.querySelector('code').textContent)")
        assert rows == ["3BOOM", "2ODD"], rows
        # A traceback is one line until it is opened.
        assert browser.run("return document.querySelector('.letter .cause').getBoundingClientRect().height") < 60
        browser.click(".letter .cause summary")
        browser.shows("at line 39")
        browser.click("#groups tbody tr:first-child .resolve-group")
        browser.type("#sure-number", "3")
        browser.click("#sure-yes")
        wait_for("the group to be resolved", lambda: unresolved("BOOM") == 0)
        browser.said("3 resolved.")
        assert unresolved("ODD") == 2
        browser.open(f"{server.url}/dead-letters")
        browser.click("#groups .replay-group")
        browser.type("#sure-number", "2")
        browser.click("#sure-yes")
        wait_for("the other group to be replayed", lambda: unresolved("ODD") == 0)
        assert len([server.claim(worker) for _ in range(2)]) == 2


def triggers_are_fired_tried_and_paused(driver):
    with Server() as server, Browser(driver) as browser:
        target = {"job": {"queue": "reports", "kind": "nightly", "payload": {"serial": LONG}}}
        trigger = server.post("triggers", {"name": "nightly", "source": "cron", "target": target,
                                           "filter": {"schedule": "0 3 * * *", "timezone": "Europe/Berlin"}})["id"]
        browser.open(f"{server.url}/triggers")
        shown = browser.run("return document.querySelectorAll('article time[data-show=time]').length")
        assert shown == 5, shown
        browser.click(f"#trigger-{trigger} .fire")
        browser.click("#sure-yes")
        wait_for("a job of the trigger", lambda: server.get("jobs?queue=reports")["items"])
        browser.click(f'[data-open="try-{trigger}"]')
        browser.type(f"#try-{trigger} [name=attributes]", '{"nonsense": "x"}')
        browser.click(f"#try-{trigger} button.primary")
        browser.shows("attributes.nonsense")
        # The form keeps its input beside the response.
        browser.type(f"#try-{trigger} [name=attributes]", "")
        browser.click(f"#try-{trigger} button.primary")
        wait_for("the answer", lambda: '"matches": true' in browser.text(f"#try-{trigger} .dry-run-result"))
        browser.click(f"#try-{trigger} [data-close]")
        assert len(server.get("jobs?queue=reports")["items"]) == 1
        browser.click(f"#trigger-{trigger} .toggle")
        wait_for("the trigger to be paused", lambda: not server.get(f"triggers/{trigger}")["enabled"])
        browser.shows("paused")
        browser.click(f"#trigger-{trigger} .toggle")
        wait_for("the trigger to go on", lambda: server.get(f"triggers/{trigger}")["enabled"])
        assert server.get(f"triggers/{trigger}")["target"]["job"]["payload"] == {"serial": LONG}


def a_trigger_is_made_edited_followed_to_what_it_started_and_deleted(driver):
    with Server() as server, Browser(driver) as browser:
        browser.open(f"{server.url}/triggers")
        browser.click('[data-open="new-trigger"]')
        browser.type("#new-trigger [name=name]", "nightly")
        browser.click("#new-trigger button.primary")
        browser.shows("Runs of scripts")
        trigger = server.get("triggers")["items"][0]["id"]
        assert browser.address().endswith(f"/triggers/{trigger}"), browser.address()
        browser.click("#edit-open")
        target = {"script": 'log("ran " + (1 + 1));'}
        browser.type("#edit [name=target]", json.dumps(target))
        browser.click("#edit button.primary")
        wait_for("the script", lambda: server.get(f"triggers/{trigger}")["target"] == target)
        browser.click(".fire")
        browser.click("#sure-yes")
        browser.said("nightly was fired")
        run = wait_for("the run", lambda: server.get(f"triggers/{trigger}/runs")["items"])[0]["id"]
        browser.click(f"#run-{run} summary")
        browser.shows("ran 2")
        browser.click("#delete")
        browser.click("#sure-yes")
        browser.shows("No triggers yet")
        assert not server.get("triggers")["items"]


def a_failing_group_gets_its_cause_and_is_replayed(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("broken", name="breaker")
        for _ in range(4):
            server.job("broken", "scan", max_attempts=1)
            error = {"code": "BOOM", "message": "layer 3 is not a tar archive", "retryable": False}
            server.settle(worker, server.claim(worker), "fail", error=error)
        group = wait_for("the group", lambda: [g for g in server.get("failures")["items"] if g["signature_id"] and g["count"] == 4])[0]
        browser.open(f"{server.url}/failures")
        # The controls at the end of a row cover none of its text. On a phone they are the last column of a wide table.
        browser.size(390, 900)
        assert browser.run("return getComputedStyle(document.querySelector('tr[id^=group] td.actions')).position") == "static"
        browser.size(1280, 900)
        assert browser.run(
            "const cells = [...document.querySelectorAll('tr[id^=group] > *:not(.actions)')];"
            "return cells.every((cell) => { const { right, top, height } = cell.getBoundingClientRect();"
            "return cell.contains(document.elementFromPoint(right - 4, top + height / 2)); })"
        )
        browser.click(f'[data-open="cause-{group["group_id"]}"]')
        dialog = f'#cause-{group["group_id"]}'
        browser.type(f'{dialog} [name="outcome.likely_cause"]', "the registry is full")
        browser.click(f"{dialog} button.primary")
        known = lambda: server.get(f"signatures/{group['signature_id']}")
        wait_for("the cause", lambda: known()["outcome"].get("likely_cause") == "the registry is full")
        assert known()["status"] == "confirmed", known()
        browser.shows("the registry is full")
        for muted in (True, False):
            browser.click(f'[data-open="cause-{group["group_id"]}"]')
            browser.click(f"{dialog} form.actions button")
            wait_for(f"muted to be {muted}", lambda: known()["muted"] == muted)
            wait_for("the page to say so", lambda: browser.has(f"#group-{group['group_id']} .state-muted") == muted)
        browser.click(f'#group-{group["group_id"]} form button')
        browser.type("#sure-number", "4")
        browser.click("#sure-yes")
        wait_for("all four again", lambda: server.get("queues/broken")["counts"]["queued"] == 4)
        browser.said("4 replayed")


def a_group_of_more_than_one_call_takes_is_replayed_whole(driver):
    with Server() as server, Browser(driver) as browser:
        worker = server.worker("broken", name="breaker")
        server.post("jobs/batch", {"jobs": [{"queue": "broken", "kind": "scan", "max_attempts": 1}] * 520})
        error = {"code": "BOOM", "message": "layer 3 is not a tar archive", "retryable": False}
        failed = 0
        while failed < 520:
            claimed = server.post(f"workers/{worker}/claim", {"max": 520, "wait_s": 30})["jobs"]
            outcomes = [{"job_id": job["id"], "epoch": job["epoch"], "outcome": "fail", "error": error} for job in claimed]
            server.post(f"workers/{worker}/settle", {"outcomes": outcomes})
            failed += len(claimed)
        group = wait_for("the group", lambda: [g for g in server.get("failures")["items"] if g["count"] == 520])[0]
        browser.open(f"{server.url}/failures")
        browser.click(f'#group-{group["group_id"]} form button')
        browser.type("#sure-number", "520")
        browser.click("#sure-yes")
        wait_for("all of them again", lambda: server.get("queues/broken")["counts"]["queued"] == 520)
        browser.said("520 replayed")


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
        # The page lists every attempt and can send the delivery again.
        browser.click(f"#delivery-{delivery} td a")
        browser.shows("attempt 2")
        browser.shows("status 204")
        browser.shows('"job.canceled"')
        browser.click("#redeliver")
        wait_for("the receiver to have it once more", lambda: len(received) > before + 1)
        browser.shows("attempt 3")
    receiver.shutdown()
    receiver.server_close()
