"""A server on a temporary database, short functions for its API, and a proxy that serves it below a path."""

import contextlib
import http.server
import json
import os
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("WINDLASS_BIN", str(ROOT / "target/debug/windlass"))


class Server:
    def __init__(self, *flags):
        self.flags = flags
        self.token = None

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        arguments = [BINARY, "serve", "--listen", "127.0.0.1:0", *self.flags]
        self.process = subprocess.Popen(arguments, cwd=self.folder.name, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split("serves on ")[1].split()[0].rstrip("/")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def cli(self, *arguments):
        """Runs a command of the CLI on the machine of the server."""
        done = subprocess.run([BINARY, *arguments], cwd=self.folder.name, check=True, capture_output=True, text=True)
        return done.stdout

    @contextlib.contextmanager
    def work(self, queue, script):
        """Starts a worker that runs a shell script for each job."""
        arguments = [BINARY, "work", "--url", self.url, "--queue", queue, "--", "sh", "-c", script]
        worker = subprocess.Popen(arguments, cwd=self.folder.name, stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            worker.terminate()
            worker.wait()

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def get(self, path):
        return self.ask("GET", "/api/v1/" + path)

    def post(self, path, body=None):
        return self.ask("POST", "/api/v1/" + path, body)

    def put(self, path, body):
        return self.ask("PUT", "/api/v1/" + path, body)

    def job(self, queue="mail", kind="welcome", **more):
        return self.post("jobs", {"queue": queue, "kind": kind, "payload": {"user": 7}, **more})["id"]

    def worker(self, *queues, name="w"):
        return self.post("workers", {"name": name, "queues": list(queues), "lease_s": 600})["id"]

    def claim(self, worker):
        return self.post(f"workers/{worker}/claim", {"max": 1, "wait_s": 30})["jobs"][0]

    def settle(self, worker, job, outcome, **more):
        outcome = {"job_id": job["id"], "epoch": job["epoch"], "outcome": outcome, **more}
        results = self.post(f"workers/{worker}/settle", {"outcomes": [outcome]})["results"]
        assert results[0]["status"] == "applied", results

    def failed_job(self, **more):
        """Creates a job that failed for good."""
        worker = self.worker("broken", name="breaker")
        job = self.job("broken", "scan", **more)
        error = {"code": "BOOM", "message": "it broke in two", "retryable": False}
        self.settle(worker, self.claim(worker), "fail", error=error)
        return job


@contextlib.contextmanager
def under_a_path(url, prefix):
    """A reverse proxy that serves `url` below `prefix` and nothing else."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def handle_any(self):
            if not self.path.startswith(prefix + "/"):
                self.send_error(404)
                return
            length = int(self.headers.get("content-length") or 0)
            data = self.rfile.read(length) if length else None
            kept = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "accept-encoding")}
            request = urllib.request.Request(url + self.path[len(prefix):], data, kept, method=self.command)
            opener = urllib.request.build_opener(NoRedirect)
            try:
                answer = opener.open(request, timeout=120)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                with contextlib.suppress(OSError, TimeoutError):
                    while chunk := answer.read1(65536):
                        self.wfile.write(chunk)
                        self.wfile.flush()

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, *_):
            pass

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None

    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}{prefix}"
    finally:
        proxy.shutdown()
        proxy.server_close()
