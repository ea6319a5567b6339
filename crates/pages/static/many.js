// Changes many objects with one request each, a few at a time.
import { call } from "./call.js";
import { toast } from "./make.js";

const CONCURRENCY = 8;
const PAGE_SIZE = 500;
export const MAX_OBJECTS = 10000;

// The ids of a listing, page by page.
export async function listIds(listing) {
  const [route, query] = listing.split("?");
  const parameters = new URLSearchParams(query);
  parameters.set("limit", PAGE_SIZE);
  const ids = [];
  do {
    const page = await call("GET", `api/v1/${route}?${parameters}`);
    ids.push(...page.items.map(({ id }) => id));
    parameters.set("cursor", page.next_cursor ?? "");
  } while (parameters.get("cursor") && ids.length < MAX_OBJECTS);
  return ids.slice(0, MAX_OBJECTS);
}

// Counts the calls that succeeded and failed.
export async function forEach(ids, act, doing) {
  const total = ids.length.toLocaleString("en");
  const progress = toast(`${doing}…`, { duration_ms: 0 });
  let succeeded = 0, failed = 0, next = 0;
  const worker = async () => {
    while (next < ids.length) {
      const id = ids[next++];
      try {
        await act(id);
        succeeded += 1;
      } catch {
        failed += 1;
      }
      progress.update(`${doing}… ${succeeded + failed} of ${total}`);
    }
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, worker));
  progress.close();
  return { succeeded, failed };
}
