/** Durations: seconds as a number, or a number with a unit. */

/** A length of time: seconds as a number, or a number with a unit, such as `"250ms"`, `"30s"`, `"5m"`, `"2h"` or `"3d"`. */
export type Duration = number | `${number}${"ms" | "s" | "m" | "h" | "d"}`;

const UNITS: Record<string, number> = { ms: 0.001, s: 1, m: 60, h: 3_600, d: 86_400 };

/** Converts a duration to seconds. */
export function toSeconds(duration: Duration): number {
  if (typeof duration === "number" && Number.isFinite(duration) && duration >= 0) return duration;
  const [, amount, unit] = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(String(duration)) ?? [];
  const factor = UNITS[unit ?? ""];
  if (factor === undefined) {
    throw new RangeError(`invalid duration ${JSON.stringify(duration)}; write seconds, or for example "5m" or "2h"`);
  }
  return Number(amount) * factor;
}

/** Converts a duration to milliseconds. */
export function toMilliseconds(duration: Duration): number {
  return toSeconds(duration) * 1_000;
}

/** Converts a duration to whole seconds, rounded up, for members of the API that take integers. */
export function toWholeSeconds(duration: Duration): number {
  return Math.ceil(toSeconds(duration));
}
