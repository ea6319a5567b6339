"""Checks of every page: access, escaping, accessibility."""

import json
import re
import urllib.request

from browser.docker import Docker
from browser.server import Server, under_a_path
from browser.things import PAGES, full, things_with_polyglots
from browser.webdriver import Browser, wait_for

AXE = ""
# The headings of the menu, in order.
GROUPS = ["Queue", "Workflows", "Fleet", "Signals", "Triggers", "Runtimes", "Access", "System"]
PICTURES = None


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
        assert not browser.has("[data-call]") and not browser.has('#navigation a[data-key="k"]')
        # The server checks as well.
        status = browser.run_async(
            "const done = arguments[1]; fetch(arguments[0], {method: 'POST'}).then((answer) => done(answer.status))",
            f"{url}/api/v1/jobs/{job}/cancel",
        )
        assert status == 403, status
        browser.click('form[action$="sign-out"] button')
        wait_for("the door", lambda: "/sign-in" in browser.address())
        browser.open(f"{url}/tokens")
        browser.type("#token", admin)
        browser.click("button.primary")
        browser.click('[data-open="new-token"]')
        browser.type("#new-token [name=name]", "ci")
        browser.click("#new-token button.primary")
        browser.shows("shown only once")
        fresh = browser.text("#made code")
        assert fresh.startswith("windlass_")
        server.token = fresh
        assert server.get("jobs?limit=1")["items"]
        server.token = admin
        revoke = [token["id"] for token in server.get("tokens")["items"] if token["name"] == "ci"][0]
        browser.click(f"#token-{revoke} form button")
        browser.click("#sure-yes")
        wait_for("the token to be revoked", lambda: [t for t in server.get("tokens")["items"] if t["id"] == revoke][0]["state"] == "revoked")
        # The navigation of a signed-in user has more entries.
        browser.size(390, 900)
        for page in PAGES:
            browser.open(f"{url}/{page}")
            browser.find("#find:not([hidden])")
            fits(browser, page, 390)


REDIRECTED = """
    window.redirected = 0;
    const real = window.fetch;
    window.fetch = async (...asked) => { const answer = await real(...asked); redirected += answer.redirected; return answer; };
"""


def the_first_token_is_shown_to_its_creator(driver):
    with Server() as server, Browser(driver) as browser:
        browser.open(f"{server.url}/tokens")
        browser.run(REDIRECTED)
        browser.click('[data-open="new-token"]')
        browser.type("#new-token [name=name]", "me")
        browser.click("#new-token button.primary")
        browser.shows("shown only once")
        server.token = browser.text("#made code")
        assert server.get("tokens")["items"][0]["role"] == "admin"
        # Requests now need a token, and the page still shows the new one.
        wait_for("the page to be sent to the door", lambda: browser.run("return redirected"))
        assert browser.text("#made code") == server.token
        browser.click("#made a")
        browser.type("#token", server.token)
        browser.click("button.primary")
        browser.find("#navigation")


def fits(browser, page, width):
    wide = browser.run("return document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"/{page} is {wide} px too wide at {width}"


def times_are_local_with_utc_and_a_page_reports_its_own_first_signal(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.job()
        browser.open(f"{server.url}/jobs/{job}")
        shown, utc, title = browser.run(
            "const t = document.querySelector('.facts time'); return [t.textContent, t.dateTime, t.title]"
        )
        hour = int(utc[11:13])
        assert title.endswith("UTC") and shown != title, (shown, title)
        assert any(f"{(hour + ahead) % 24:02}:" in shown for ahead in (1, 2)), (shown, utc)
        events = lambda: [item for item in server.get("ttfs/slo")["items"] if item["surface"] == "ui"]
        wait_for("the page's own first signal", events)
        # Half of the signals are late, ten times the permitted share. The page's own signal may be one of them.
        rendered = {"job_id": job, "surface": "ui", "event_type": "signal.rendered", "cache_hit": False}
        server.post("ttfs/events", {"events": [rendered | {"ttfs_ms": ttfs_ms} for ttfs_ms in [20] * 9 + [9000] * 10]})
        browser.open(f"{server.url}/")
        wait_for("the burn", lambda: re.search(r"burn 1[01]\.0×", browser.text("#burn")))


BEHIND = """
    window.behind = true;
    window.asked = [];
    Object.defineProperty(document, "hidden", { get: () => window.behind });
    const real = window.fetch;
    window.fetch = (address, ...more) => { asked.push(String(address)); return real(address, ...more); };
"""


def a_hidden_page_reports_no_first_signal_and_starts_its_log_when_it_is_shown(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.job("slow")
        with server.work("slow", "echo 'a line' >&2"):
            wait_for("the end", lambda: server.get(f"jobs/{job}")["state"] == "succeeded")
        browser.command("Page.addScriptToEvaluateOnNewDocument", {"source": BEHIND})
        browser.open(f"{server.url}/jobs/{job}")
        log = lambda: browser.run("return document.getElementById('stored-log').textContent.trim()")
        frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done)))"
        browser.run_async(frames)
        assert log() == "" and browser.run("return asked") == [], browser.run("return asked")
        browser.run("behind = false; document.dispatchEvent(new Event('visibilitychange'))")
        wait_for("the log", lambda: log() == "a line")
        browser.run_async(frames)
        assert not [address for address in browser.run("return asked") if "ttfs" in address]


def the_menu_has_groups_badges_and_keys_and_a_breadcrumb_leads_back(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.failed_job()
        browser.open(f"{server.url}/jobs/{job}")
        groups = browser.run("return [...document.querySelectorAll('#navigation .group')].map((group) => group.textContent)")
        assert groups == GROUPS, groups
        # Each list is named by its group, and each entry has an icon.
        named = browser.run("return [...document.querySelectorAll('#navigation ul[aria-labelledby]')].map((list) => document.getElementById(list.getAttribute('aria-labelledby')).textContent)")
        assert named == GROUPS, named
        assert browser.run("return [...document.querySelectorAll('#navigation a[data-key]')].every((link) => link.querySelector('svg.icon'))")
        wait_for("the badge", lambda: browser.has("#badge-dead-letters") and browser.text("#badge-dead-letters").startswith("1"))
        trail = lambda: browser.run("return [...document.querySelectorAll('nav.crumbs li')].map((step) => step.textContent.trim())")
        assert trail()[:3] == ["Queue", "Jobs", "broken"] and trail()[3].startswith("scan "), trail()
        browser.click("nav.crumbs li:nth-child(2) a")
        wait_for("the jobs", lambda: browser.address().endswith("/jobs"))
        assert trail() == ["Queue", "Jobs"], trail()
        # With the keyboard alone: from the skip link to the first entry of the menu and on to its page.
        browser.open(f"{server.url}/system")
        browser.run("document.querySelector('#navigation a[data-key=q]').focus()")
        browser.press("enter")
        wait_for("the queues", lambda: browser.address().endswith("/queues"))


def a_page_loads_less_than_60_kb_of_scripts_and_styles(driver):
    with Server() as server, Browser(driver) as browser:
        job = server.failed_job()
        for page in ("", "jobs", f"jobs/{job}", "queues/broken", "dead-letters"):
            browser.open(f"{server.url}/{page}")
            # Modules are loaded by other modules, after the page.
            browser.find("#find:not([hidden])")
            names = browser.run("return performance.getEntriesByType('resource').map(({ name }) => name).filter((name) => /\\.(js|css)/.test(name))")
            sizes = {name: len(urllib.request.urlopen(name).read()) for name in names}
            assert 0 < sum(sizes.values()) < 60_000, (page, sizes)


def nothing_that_came_from_a_user_runs(driver):
    with Docker() as docker, Server("--docker-host", docker.host) as server, Browser(driver) as browser:
        pages = things_with_polyglots(server)
        for width in (1280, 390):
            browser.size(width, 900)
            for page in pages:
                browser.open(f"{server.url}/{page}")
                browser.run("return new Promise((done) => setTimeout(done, 300))")
                assert browser.run("return window.ran") is None, page
                assert not browser.has("svg[onload], img[onerror], img[src=x], main script"), page
                fits(browser, page, width)
                for entry in browser.log():
                    assert entry["level"] != "SEVERE", (page, entry)


def pages_work_under_a_path(driver):
    with Server() as server, Browser(driver) as browser, under_a_path(server.url, "/tools/windlass") as url:
        job = server.job()
        browser.open(f"{url}/")
        browser.click('#navigation a[data-key="j"]')
        browser.click(f"#job-{job} a.id")
        wait_for("the job's page", lambda: browser.address() == f"{url}/jobs/{job}")
        browser.click("#cancel")
        browser.click("#sure-yes")
        wait_for("the job to be canceled", lambda: server.get(f"jobs/{job}")["state"] == "canceled")
        browser.find("#retry")
        assert not [entry for entry in browser.log() if entry["level"] == "SEVERE"]


def pages_are_accessible_in_both_themes(driver):
    with Docker() as docker, Server("--docker-host", docker.host) as server, Browser(driver) as browser:
        pages = full(server)
        for theme in ("light", "dark"):
            browser.theme(theme)
            for page in pages:
                browser.open(f"{server.url}/{page}")
                browser.find("#main")
                browser.run(AXE)
                found = browser.run_async("const done = arguments[0]; axe.run().then((r) => done(r.violations)).catch((e) => done([{id: String(e), nodes: []}]))")
                found_rules = [(rule["id"], [node["html"][:160] for node in rule["nodes"][:3]]) for rule in found]
                assert not found_rules, f"/{page} in {theme}: {found_rules}"


def every_page_has_its_picture(driver):
    if PICTURES is None:
        return
    PICTURES.mkdir(parents=True, exist_ok=True)
    with Docker() as docker, Server("--demo", "--docker-host", docker.host) as server, Browser(driver) as browser:
        wait_for("something to have failed", lambda: server.get("jobs?state=failed&limit=1")["items"])
        failed = server.get("jobs?state=failed&limit=1")["items"][0]["id"]
        *_, delivery = full(server)
        pages = {page or "overview": page for page in PAGES}
        pages |= {"job": f"jobs/{failed}", "subject": "subjects/web-01", "runtime": "runtimes/web", "delivery": delivery}
        for theme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
            browser.theme(theme)
            browser.size(width, 900)
            for name, page in pages.items():
                browser.open(f"{server.url}/{page}")
                browser.run("return new Promise((done) => setTimeout(done, 400))")
                browser.picture(PICTURES / f"{name}-{'phone' if width < 600 else theme}.png")
