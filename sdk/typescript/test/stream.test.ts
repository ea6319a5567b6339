/** Live progress: streams, the responses of web frameworks, and the React hook. */

import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";
import { serve } from "@hono/node-server";
import { Window } from "happy-dom";
import type { ReactElement } from "react";
import { createElement } from "react";
import { flushSync } from "react-dom";
import { createRoot } from "react-dom/client";
import { JobFailed, type Signal, StreamError } from "windlass";
import { useJob } from "windlass/react";
import { deferred, queue, realServer, until } from "./support.js";

const real = realServer();

test("a stream has every step from the first signal to the last", async () => {
  const wl = real.client();
  const name = queue();
  const steps = [deferred(), deferred()];
  const job = wl.job("streamed", { queue: name }, async (ctx) => {
    for (const [index, step] of steps.entries()) {
      await step.promise;
      ctx.progress((index + 1) / 4, `step ${index + 1}`);
    }
    return "done";
  });
  const handle = await job.push();
  const seen: [string, number | null | undefined][] = [];
  const worker = wl.worker();
  for await (const signal of handle.stream()) {
    seen.push([signal.kind, signal.progress]);
    if (signal.kind === "queued") {
      await worker.start();
    } else if (signal.kind === "started" && seen.filter(([kind]) => kind === "started").length === 1) {
      steps[0]?.resolve();
    } else if (signal.progress === 0.25) {
      steps[1]?.resolve();
    }
  }
  assert.deepEqual(seen[0], ["queued", null]);
  assert.ok(seen.some(([, progress]) => progress === 0.25));
  assert.equal(seen.at(-1)?.[0], "succeeded");
  await worker.stop();
  // A stream of a job that has ended yields its last signal.
  const kinds: string[] = [];
  for await (const { kind } of handle.stream()) {
    kinds.push(kind);
  }
  assert.deepEqual(kinds, ["succeeded"]);
});

test("a broken stream continues after the last signal", async () => {
  const ids: (string | null)[] = [];
  const wl = real.client({
    fetch: async (input, init) => {
      const response = await fetch(input, init);
      if (!String(input).endsWith("/stream")) {
        return response;
      }
      ids.push(new Headers(init?.headers).get("last-event-id"));
      if (ids.length > 1) {
        return response;
      }
      const reader = response.body?.getReader();
      let sent = 0;
      const cut = new ReadableStream({
        async pull(controller) {
          const { value } = (await reader?.read()) ?? {};
          sent += 1;
          if (sent > 1 || value === undefined) {
            await reader?.cancel();
            controller.error(new TypeError("terminated"));
          } else {
            controller.enqueue(value);
          }
        },
      });
      return new Response(cut, { headers: response.headers });
    },
  });
  const handle = await wl.push({ queue: queue(), kind: "cut" });
  const kinds: string[] = [];
  for await (const { kind } of handle.stream()) {
    kinds.push(kind);
    if (kind === "queued") {
      await handle.cancel();
    }
  }
  assert.deepEqual(kinds, ["queued", "canceled"]);
  assert.equal(ids[0], null);
  assert.notEqual(ids[1], null);
});

test("a stream ends when its consumer leaves, and rejects what cannot be repeated", async () => {
  const wl = real.client();
  const handle = await wl.push({ queue: queue(), kind: "left" });
  for await (const { kind } of handle.stream()) {
    assert.equal(kind, "queued");
    break;
  }
  const stopped = new AbortController();
  let signals = 0;
  for await (const _ of handle.stream({ signal: stopped.signal })) {
    signals += 1;
    stopped.abort();
  }
  assert.equal(signals, 1);
  const unknown = wl.handle("01a1dda7-a89f-7c5e-a79e-3a03bdfffb4c").stream();
  await assert.rejects(unknown.next(), (error) => error instanceof StreamError && error.status === 404);
});

/** Reads the events of a route until the job has ended. */
async function events(response: Response): Promise<Signal[]> {
  assert.equal(response.status, 200);
  assert.match(response.headers.get("content-type") ?? "", /^text\/event-stream/);
  return [...(await response.text()).matchAll(/^data: (.*)$/gm)].map(
    ([, data]) => JSON.parse(data as string) as Signal,
  );
}

interface Routes {
  push(body: unknown): Promise<Response>;
  progress(id: string): Promise<Response>;
}

/** Loads an example. It reads WINDLASS_URL then. */
async function load<T>(path: string): Promise<T> {
  process.env["WINDLASS_URL"] = real.url;
  return (await import(path)) as T;
}

async function checkRoutes({ push, progress }: Routes): Promise<void> {
  const { wl } = await load<typeof import("../examples/jobs.js")>("../examples/jobs.js");
  const worker = wl.worker();
  await worker.start();
  const accepted = await push({ url: "https://example.com/a.png", width: 80 });
  assert.equal(accepted.status, 202);
  const { id } = (await accepted.json()) as { id: string };
  const seen = await events(await progress(id));
  assert.equal(seen.at(-1)?.kind, "succeeded");
  assert.equal(seen.at(-1)?.progress, 1);
  await worker.stop();
}

function routesAt(url: string): Routes {
  const headers = { "content-type": "application/json" };
  return {
    push: (body) => fetch(`${url}/images`, { method: "POST", headers, body: JSON.stringify(body) }),
    progress: (id) => fetch(`${url}/images/${id}/progress`),
  };
}

test("the example for Express pushes jobs and streams their progress", async () => {
  const { app } = await load<typeof import("../examples/express.js")>("../examples/express.js");
  const listener = app.listen(0, "127.0.0.1");
  await once(listener, "listening");
  const routes = routesAt(`http://127.0.0.1:${(listener.address() as AddressInfo).port}`);
  await checkRoutes(routes);
  assert.equal((await routes.push({ url: "nowhere", width: 80 })).status, 400);
  listener.close();
});

test("the example for Hono pushes jobs and streams their progress", async () => {
  const { app } = await load<typeof import("../examples/hono.js")>("../examples/hono.js");
  const listening = deferred<AddressInfo>();
  const server = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, listening.resolve);
  const routes = routesAt(`http://127.0.0.1:${(await listening.promise).port}`);
  await checkRoutes(routes);
  assert.equal((await routes.push({ url: "nowhere", width: 80 })).status, 400);
  assert.equal((await routes.progress("01a1dda7-a89f-7c5e-a79e-3a03bdfffb4c")).status, 404);
  server.close();
});

test("the example for Next.js pushes jobs and streams their progress", async () => {
  const folder = "../examples/next/app/api/images";
  const { POST } = await load<typeof import("../examples/next/app/api/images/route.js")>(`${folder}/route.js`);
  type Progress = typeof import("../examples/next/app/api/images/[id]/progress/route.js");
  const { GET } = await load<Progress>(`${folder}/[id]/progress/route.js`);
  await checkRoutes({
    push: (body) => POST(new Request("http://localhost/", { method: "POST", body: JSON.stringify(body) })),
    progress: (id) => GET(new Request("http://localhost/"), { params: Promise.resolve({ id }) }),
  });
});

test("the React hook shows live progress and stops with its component", async () => {
  const window = new Window();
  Object.assign(globalThis, { window, document: window.document });
  after(() => window.happyDOM.abort());
  const wl = real.client();
  const step = deferred();
  const started = deferred();
  const job = wl.job("shown", { queue: queue() }, async (ctx) => {
    ctx.progress(0.5, "half");
    started.resolve();
    await step.promise;
  });
  let requests = 0;
  let open = 0;
  const counted: typeof fetch = (input, init) => {
    requests += 1;
    open += 1;
    init?.signal?.addEventListener("abort", () => {
      open -= 1;
    });
    return fetch(input, init);
  };
  function Progress({ id }: { id?: string }): ReactElement {
    const url = id === undefined ? undefined : `${real.url}/api/v1/jobs/${id}/stream`;
    const { progress, summary, isEnded, error } = useJob(url, { fetch: counted });
    return createElement("p", {}, error ? error.message : `${progress} ${summary} ${isEnded}`);
  }
  const container = document.createElement("div");
  const root = createRoot(container);
  const render = (id?: string) => flushSync(() => root.render(createElement(Progress, id === undefined ? {} : { id })));
  const shows = (text: string) => until(text, () => container.textContent === text);

  render();
  await shows("undefined undefined false");
  assert.equal(requests, 0);
  const worker = wl.worker();
  await worker.start();
  const handle = await job.push();
  render(handle.id);
  await started.promise;
  await shows("0.5 half false");
  step.resolve();
  await until("the end", () => container.textContent?.endsWith("true") ?? false);
  assert.equal(requests, 1);
  const unknown = "01a1dda7-a89f-7c5e-a79e-3a03bdfffb4c";
  render(unknown);
  await shows(`cannot stream ${real.url}/api/v1/jobs/${unknown}/stream: the server answered 404`);
  const waiting = await wl.push({ queue: queue(), kind: "waits" });
  render(waiting.id);
  await until("the waiting job", () => container.textContent?.endsWith("false") ?? false);
  flushSync(() => root.unmount());
  await until("the end of the stream", () => open === 0);
  await worker.stop();
  await assert.doesNotReject(handle.wait());
  await waiting.cancel();
  await assert.rejects(waiting.wait(), JobFailed);
});
