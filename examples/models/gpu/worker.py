"""A worker that serves transformer models on one device. The affinity of a job is its model.

    python3 examples/models/gpu/worker.py --url http://127.0.0.1:7717 --queue gpu --weights DIR --model alpha --model beta

A job has the payload `{"model": "alpha", "prompt": [1, 2, 3], "tokens": 64}`. One model is loaded at a time. A job that is
claimed in the state `loading` needs another model: the worker loads it and then reports `working`. A job without an
affinity does not say what it needs, so its model is loaded while it works.

Missing models are written first, with random weights. Only the standard library and PyTorch or numpy are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from transformer import SIZES, Transformer, backend, write_random

LEASE_S = 60
#: Also how long a stop may take.
CLAIM_WAIT_S = 2


class Server:
    def __init__(self, url: str) -> None:
        self.url = url + "/api/v1"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Sends one request. Retries while the server cannot answer, so that an outcome is never lost."""
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get("WINDLASS_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        wait_s = 0.1
        while True:
            try:
                request = urllib.request.Request(self.url + path, data, headers, method=method)
                with urllib.request.urlopen(request, timeout=90) as answer:
                    text = answer.read()
                    return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code != 429:
                    raise
            except OSError as error:
                print(f"worker: {method} {path}: {error}", flush=True)
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, 5)


class ModelWorker:
    def __init__(self, server: Server, weights: Path, device: str) -> None:
        self.server, self.weights = server, weights
        self.compute = backend(device)
        self.name: str | None = None
        self.model: Transformer | None = None
        self.stopped = threading.Event()

    def prepare(self, models: list[str], size: str) -> None:
        self.weights.mkdir(parents=True, exist_ok=True)
        config = SIZES[size]
        for seed, model in enumerate(models):
            path = self.path(model)
            if not path.exists():
                started = time.monotonic()
                write_random(path, config, seed, self.compute)
                took_s, size_gb = time.monotonic() - started, path.stat().st_size / 1e9
                billions = config.parameters() / 1e9
                print(f"worker: wrote {model}: {billions:.2f} B parameters, {size_gb:.2f} GB, {took_s:.1f} s", flush=True)
        # The first use of a device and of its kernels takes long. It belongs to no job.
        self.load(models[-1])
        assert self.model is not None
        self.model.generate([1, 2, 3], 4)
        self.unload()

    def path(self, model: str) -> Path:
        return self.weights / f"{model}.safetensors"

    def unload(self) -> None:
        self.name = self.model = None
        self.compute.release()

    def load(self, model: str) -> float:
        """Replaces the loaded model. Returns how long that took."""
        if model == self.name:
            return 0.0
        started = time.monotonic()
        self.unload()
        self.model = Transformer(self.path(model), self.compute)
        self.name = model
        return time.monotonic() - started

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        payload = job["payload"]
        was_other, load_s = self.name is not None, 0.0
        if not self.path(payload["model"]).exists():
            raise FileNotFoundError(f"no weights for the model {payload['model']!r}")
        load_s = self.load(payload["model"])
        if job["state"] == "loading":
            self.server.call("PUT", f"/jobs/{job['id']}/signal", {"epoch": job["epoch"], "state": "working"})
        started = time.monotonic()
        assert self.model is not None
        tokens = self.model.generate(payload["prompt"], payload["tokens"])
        return {
            "tokens": tokens,
            "generate_s": round(time.monotonic() - started, 4),
            "load_s": round(load_s, 4),
            "loads": int(load_s > 0),
            "swaps": int(load_s > 0 and was_other),
            "device": self.compute.device,
            "parameters": self.model.config.parameters(),
        }

    def settle(self, worker: str, job: dict[str, Any]) -> None:
        try:
            outcome = {"outcome": "finish", "result": self.run(job)}
        except (KeyError, TypeError, ValueError) as error:
            outcome = {"outcome": "fail", "error": {"code": "bad_input", "message": repr(error), "retryable": False}}
        except Exception as error:
            print(f"worker: job {job['id']}: {error!r}", flush=True)
            outcome = {"outcome": "fail", "error": {"code": type(error).__name__, "message": str(error)}}
        outcome |= {"job_id": job["id"], "epoch": job["epoch"]}
        self.server.call("POST", f"/workers/{worker}/settle", {"outcomes": [outcome]})

    def heartbeats(self, worker: str, lost: threading.Event) -> None:
        while not (lost.is_set() or self.stopped.is_set()):
            try:
                body = {"wait_s": LEASE_S / 3} | ({"affinity": self.name} if self.name else {})
                if self.server.call("POST", f"/workers/{worker}/heartbeat", body)["drain"]:
                    self.stopped.set()
            except urllib.error.HTTPError:
                lost.set()

    def work(self, queue: str, models: list[str]) -> None:
        while not self.stopped.is_set():
            name = f"models-{os.getpid()}"
            registration = {"name": name, "queues": [queue], "affinities": models, "lease_s": LEASE_S}
            worker = self.server.call("POST", "/workers", registration)["id"]
            print(f"worker: registered on {self.compute.device}", flush=True)
            lost = threading.Event()
            threading.Thread(target=self.heartbeats, args=(worker, lost), daemon=True).start()
            while not (lost.is_set() or self.stopped.is_set()):
                body = {"max": 1, "wait_s": CLAIM_WAIT_S} | ({"affinity": self.name} if self.name else {})
                try:
                    claimed = self.server.call("POST", f"/workers/{worker}/claim", body)["jobs"]
                except urllib.error.HTTPError as error:
                    if error.code not in (404, 410):
                        raise
                    lost.set()
                    break
                for job in claimed:
                    self.settle(worker, job)
            if self.stopped.is_set():
                self.server.call("DELETE", f"/workers/{worker}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=os.environ.get("WINDLASS_URL", "http://127.0.0.1:7717"))
    parser.add_argument("--queue", default="gpu")
    parser.add_argument("--weights", type=Path, required=True, help="folder with one file per model")
    parser.add_argument("--model", action="append", required=True, help="name of a model; repeat it")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="size of models that are written [default: tiny]")
    parser.add_argument("--device", default="auto", help="`cuda`, `cpu` (PyTorch), `numpy` or `auto` [default: auto]")
    args = parser.parse_args()
    worker = ModelWorker(Server(args.url), args.weights, args.device)
    signal.signal(signal.SIGTERM, lambda *_: worker.stopped.set())
    signal.signal(signal.SIGINT, lambda *_: worker.stopped.set())
    worker.prepare(args.model, args.size)
    worker.work(args.queue, args.model)


if __name__ == "__main__":
    main()
