/** Requests to the HTTP API: address, token, errors and retries. Used by the client and by workers. */

import { Backoff, sleep } from "./backoff.js";
import { ApiError, ConnectionError, classify, type ProblemMembers } from "./errors.js";
import type { Problem } from "./wire.js";

/** How long an idempotent request is repeated while the server is away. */
const RETRY_MS = 15_000;

/** System errors that occur before a request is sent. */
const UNSENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"];

/** Where and how to reach a server. */
export type Connection = { url: string; headers: Record<string, string>; fetch: typeof fetch; timeoutMs: number };

/** Options of one request. */
export interface RequestOptions {
  /** A JSON value. */
  body?: unknown;
  /** JSON that is already serialized, or bytes with a `content-type` in `headers`. */
  rawBody?: string | Uint8Array<ArrayBuffer>;
  /** Query parameters. Those that are undefined are left out. */
  query?: Record<string, string | number | undefined>;
  /** Additional headers. */
  headers?: Record<string, string>;
  /** How long the server may hold the request open, in milliseconds. It is added to the timeout. */
  heldMs?: number;
  /** Aborts the request. */
  signal?: AbortSignal | undefined;
  /** @internal Receives the length of the answer, in characters. */
  onLength?: (length: number) => void;
}

/** An HTTP client for `/api/v1` of one server. */
export class Http {
  readonly connection: Connection;
  readonly #api: string;

  constructor(connection: Connection) {
    const url = URL.canParse(connection.url) ? new URL(connection.url) : undefined;
    if (url?.protocol !== "http:" && url?.protocol !== "https:") {
      const given = JSON.stringify(connection.url);
      throw new TypeError(`invalid server URL ${given}: it must start with http:// or https://`);
    }
    this.#api = `${url.origin}${url.pathname.replace(/\/+$/, "")}/api/v1`;
    this.connection = connection;
  }

  /** The address of a path below `/api/v1`. */
  address(path: string, query: RequestOptions["query"] = {}): string {
    const given = Object.entries(query).filter(([, value]) => value !== undefined);
    const parameters = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
    return `${this.#api}${path}${given.length > 0 ? `?${parameters}` : ""}`;
  }

  /** Sends a request and parses the answer. Returns `undefined` for an empty answer. An error becomes an `ApiError`. */
  async request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    const { connection } = this;
    const headers: Record<string, string> = { ...connection.headers, ...options.headers };
    const body = options.body === undefined ? options.rawBody : JSON.stringify(options.body);
    if (typeof body === "string") headers["content-type"] ??= "application/json";
    // Not `AbortSignal.any`: on Node.js 20 each call leaves something behind in the caller's signal.
    const ended = new AbortController();
    const abort = (): void => ended.abort(options.signal?.reason);
    const expire = (): void => ended.abort(new DOMException("timeout", "TimeoutError"));
    const timer = setTimeout(expire, connection.timeoutMs + (options.heldMs ?? 0));
    options.signal?.addEventListener("abort", abort);
    const init: RequestInit = { method, headers, signal: ended.signal, redirect: "manual" };
    if (body !== undefined) init.body = body;
    try {
      options.signal?.throwIfAborted();
      const response = await connection.fetch(this.address(path, options.query), init);
      const text = await response.text();
      if (!response.ok) throw problemOf(response, text);
      options.onLength?.(text.length);
      return (text === "" ? undefined : JSON.parse(text)) as T;
    } catch (error) {
      throw this.#connectionError(error, options.signal);
    } finally {
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", abort);
    }
  }

  /** Like `request`, for an idempotent request: it is repeated for a while when the server is away. */
  async persist<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    const backoff = new Backoff();
    const giveUpAt = performance.now() + RETRY_MS;
    for (;;) {
      try {
        return await this.request<T>(method, path, options);
      } catch (error) {
        const kind = classify(error);
        const wait = Math.max(backoff.next(), retryAfterMs(error));
        if (kind === "refused" || kind === "gone" || performance.now() + wait > giveUpAt) throw error;
        await sleep(wait, options.signal);
        options.signal?.throwIfAborted();
      }
    }
  }

  #connectionError(error: unknown, caller: AbortSignal | undefined): unknown {
    if (error instanceof ApiError || caller?.aborted) return error;
    const cause = (error as { cause?: { code?: string; message?: string } }).cause;
    const code = cause?.code ?? "";
    const reason =
      (error as Error).name === "TimeoutError" ? "timeout" : code || cause?.message || (error as Error).message;
    const sent = !UNSENT.includes(code);
    const hint = code === "ECONNREFUSED" ? "; is `windlass serve` running?" : "";
    const what = sent ? "no answer from" : "cannot reach";
    return new ConnectionError(`${what} ${this.connection.url}: ${reason}${hint}`, sent, error);
  }
}

/** The wait that the server asks for, in milliseconds. */
export function retryAfterMs(error: unknown): number {
  return error instanceof ApiError ? Math.min(error.retryAfterS ?? 0, 60) * 1_000 : 0;
}

function problemOf(response: Response, text: string): ApiError {
  const retryAfterS = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  const after = Number.isNaN(retryAfterS) ? undefined : retryAfterS;
  try {
    const problem = JSON.parse(text) as Partial<Problem>;
    if (typeof problem.code === "string" && typeof problem.detail === "string") {
      return new ApiError({ ...(problem as ProblemMembers), status: response.status }, true, after);
    }
  } catch {
    // Not a problem document.
  }
  const detail = `unexpected response ${response.status} without a problem document; is this the address of a Windlass server?`;
  const code = response.status >= 500 ? "outcome_unknown" : "no_such_route";
  return new ApiError({ status: response.status, code, detail }, false, after);
}
