// Playing many again: as many calls as it takes, and what became of all of them.
import { call } from "./call.js";
import { toast } from "./make.js";

// A call plays at most `most` jobs of a group. The group may grow while it is played, when they fail again: no more are
// played than the reader was told of.
export async function inTurns(path, { most, number }) {
  const sums = { played: 0, before: 0, gone: 0 };
  const told = toast("Playing them again…", { lasts: 0 });
  try {
    for (let left = Number(number); left > 0; left = Number(number) - sums.played) {
      const limit = Math.min(left, Number(most));
      const answer = await call("POST", path, { limit });
      const played = answer.jobs.length;
      sums.played += played;
      sums.before += answer.retried_before;
      // Every answer names those that are pruned again.
      sums.gone = Math.max(sums.gone, answer.gone);
      told.say(`${many(sums.played)} played again…`);
      if (!played || played + answer.retried_before + answer.gone < limit) break;
    }
  } catch (error) {
    if (!sums.played) throw error;
    throw new Error(`${many(sums.played)} were played again, then: ${error.message}`);
  } finally {
    told.end();
  }
  return JSON.stringify(sums);
}

const many = (number) => number.toLocaleString("en");

// What became of them, each part that there is: `data-sums` names the parts.
const SUMS = {
  group: ({ played, before, gone }) => [[played, "played again"], [before, "played before"], [gone, "gone"]],
  letters: ({ replayed, not_replayable, already_resolved, not_found }) => [
    [replayed, "played again"],
    [not_replayable, "cannot be played again"],
    [already_resolved, "dealt with before"],
    [not_found, "gone"],
  ],
};

export function words({ done, sums }, answer) {
  const [first, ...others] = SUMS[sums]?.(answer) ?? [];
  if (!first) return done || "Done";
  return [first, ...others.filter(([number]) => number)].map(([number, what]) => `${many(number)} ${what}`).join(", ");
}
