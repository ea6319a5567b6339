/**
 * Live progress of a job in React, over server-sent events.
 *
 * @packageDocumentation
 */

import { useEffect, useRef, useState } from "react";
import { isFinal, type StreamOptions, streamSignals } from "../sse.js";
import type { Signal } from "../wire.js";

export type { StreamOptions } from "../sse.js";
export { StreamError, streamSignals } from "../sse.js";
export type { NextAction, Signal } from "../wire.js";

/** What `useJob` returns. */
export interface JobProgress {
  /** The newest signal; undefined until the first one arrives. */
  signal: Signal | undefined;
  /** From 0 to 1; undefined until the worker reports a progress. */
  progress: number | undefined;
  /** One sentence for people. */
  summary: string | undefined;
  /** True when the job has ended. `signal.kind` is `succeeded`, `failed` or `canceled` then. */
  isEnded: boolean;
  /** The reason why the stream cannot be read, for example a status 403. */
  error: Error | undefined;
}

/**
 * Follows a job until it has ended. `url` is a route of your application that returns `JobHandle.response`, so that the
 * browser needs no token. Without a URL the hook does nothing. The options apply when the URL changes.
 */
export function useJob(url: string | undefined, options: Omit<StreamOptions, "signal"> = {}): JobProgress {
  const [state, setState] = useState<{ url?: string | undefined; signal?: Signal; error?: Error }>({});
  // Not a dependency of the effect: a new object in each render must not open a new connection.
  const latest = useRef(options);
  latest.current = options;
  useEffect(() => {
    if (url === undefined) return;
    const stopped = new AbortController();
    const follow = async (): Promise<void> => {
      for await (const signal of streamSignals(url, { ...latest.current, signal: stopped.signal })) {
        if (!stopped.signal.aborted) setState({ url, signal });
      }
    };
    follow().catch((error: Error) => {
      if (!stopped.signal.aborted) setState((current) => ({ ...(current.url === url && current), url, error }));
    });
    return () => stopped.abort();
  }, [url]);
  // What another URL returned is not shown.
  const { signal, error } = state.url === url ? state : {};
  const { summary, progress } = signal ?? {};
  return { signal, progress: progress ?? undefined, summary, isEnded: isFinal(signal?.kind ?? ""), error };
}
