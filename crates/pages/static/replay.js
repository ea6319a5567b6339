// Replays a failure group in batches, and summarizes the results of replays.
import { call } from "./call.js";
import { toast } from "./make.js";

// Replays up to `number` jobs of a group, at most `most` per request. Replayed jobs that fail again rejoin the group, so the
// total is limited to the number that the user confirmed.
export async function replayInBatches(path, { most, number }) {
  const sums = { replayed: 0, retried_before: 0, deleted: 0 };
  const progress = toast("Replaying…", { duration_ms: 0 });
  try {
    for (let remaining = Number(number); remaining > 0; remaining = Number(number) - sums.replayed) {
      const limit = Math.min(remaining, Number(most));
      const response = await call("POST", path, { limit });
      const replayed = response.jobs.length;
      sums.replayed += replayed;
      sums.retried_before += response.retried_before;
      // Every response counts the same deleted jobs.
      sums.deleted = Math.max(sums.deleted, response.gone);
      progress.update(`${format(sums.replayed)} replayed…`);
      if (!replayed || replayed + response.retried_before + response.gone < limit) break;
    }
  } catch (error) {
    if (!sums.replayed) throw error;
    throw new Error(`Replay stopped after ${format(sums.replayed)} jobs: ${error.message}`);
  } finally {
    progress.close();
  }
  return JSON.stringify(sums);
}

const format = (number) => number.toLocaleString("en");

// The parts of a result, by the name in `data-sums`. Parts other than the first are shown if they are not zero.
const SUMS = {
  group: ({ replayed, retried_before, deleted }) => [
    [replayed, "replayed"],
    [retried_before, "already retried"],
    [deleted, "deleted by retention"],
  ],
  letters: ({ replayed, not_replayable, already_resolved, not_found }) => [
    [replayed, "replayed"],
    [not_replayable, "cannot be replayed"],
    [already_resolved, "already resolved"],
    [not_found, "not found"],
  ],
};

export function summary({ done, sums }, response) {
  const [first, ...others] = SUMS[sums]?.(response) ?? [];
  if (!first) return done || "Done";
  return [first, ...others.filter(([number]) => number)].map(([number, what]) => `${format(number)} ${what}`).join(", ");
}
