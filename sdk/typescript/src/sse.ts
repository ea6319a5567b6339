/** Live signals over server-sent events. Uses `fetch` only, so that it runs in browsers too. */

import { Backoff, sleep } from "./backoff.js";
import type { Signal } from "./wire.js";

/** The longest line that a stream may send, in characters. */
const MAX_LINE = 8 << 20;

/** Options of `streamSignals`. */
export interface StreamOptions {
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch;
  /** Additional headers, for example `authorization`. */
  headers?: Record<string, string>;
  /** Ends the stream. */
  signal?: AbortSignal;
}

/** The stream was rejected with a status that a repetition does not change. */
export class StreamError extends Error {
  /** The HTTP status. */
  readonly status: number;

  /** @internal */
  constructor(url: string, status: number) {
    super(`cannot stream ${url}: the server answered ${status}`);
    this.name = "StreamError";
    this.status = status;
  }
}

/**
 * Yields each signal of a job until the job has ended. `url` is `GET /api/v1/jobs/{id}/stream`, or a route of your own
 * that passes it on. A broken connection is opened again and continues after the last signal.
 */
export async function* streamSignals(
  url: string,
  options: StreamOptions = {},
): AsyncGenerator<Signal, void, undefined> {
  const { signal } = options;
  const send = options.fetch ?? fetch;
  const backoff = new Backoff();
  let lastEventId: string | undefined;
  while (!signal?.aborted) {
    let ended = false;
    try {
      const headers: Record<string, string> = { ...options.headers, accept: "text/event-stream" };
      if (lastEventId !== undefined) headers["last-event-id"] = lastEventId;
      const response = await send(url, { headers, ...(signal && { signal }) });
      if (response.status === 204) return;
      const { status } = response;
      if (status >= 400 && status < 500 && status !== 429) throw new StreamError(url, status);
      if (response.ok && response.body) {
        for await (const event of parseEvents(response.body)) {
          lastEventId = event.id ?? lastEventId;
          if (event.name !== "signal") continue;
          const current = JSON.parse(event.data) as Signal;
          ended = isFinal(current.kind);
          backoff.reset();
          yield current;
        }
        if (ended) return;
      }
    } catch (error) {
      if (error instanceof StreamError) throw error;
      // The connection broke, or the caller ended the stream.
    }
    await sleep(backoff.next(), signal);
  }
}

/** True if the job cannot change any more. */
export function isFinal(state: string): state is "succeeded" | "failed" | "canceled" {
  return state === "succeeded" || state === "failed" || state === "canceled";
}

type ServerSentEvent = { name: string; id: string | undefined; data: string };

async function* parseEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerSentEvent, void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  let event: ServerSentEvent = { name: "message", id: undefined, data: "" };
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      buffer += decoder.decode(value, { stream: true });
      const lines = buffer.split(/\r\n|\n|\r(?!$)/);
      buffer = lines.pop() ?? "";
      if (buffer.length > MAX_LINE) throw new RangeError("a line of the stream is too long");
      for (const line of lines) {
        if (line === "") {
          if (event.data !== "") yield event;
          event = { name: "message", id: undefined, data: "" };
          continue;
        }
        const [, field, text = ""] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
        if (field === "event") event.name = text;
        else if (field === "id") event.id = text;
        else if (field === "data") event.data += event.data === "" ? text : `\n${text}`;
      }
    }
  } finally {
    // Closes the connection when the consumer stops early.
    await reader.cancel().catch(() => {});
  }
}
