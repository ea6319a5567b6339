// A Hono application that pushes jobs and sends their progress to browsers.

import { Hono } from "hono";
import { InvalidPayload } from "windlass";
import { resize, wl } from "./jobs.js";

export const app = new Hono();

app.post("/images", async (c) => {
  const { id } = await resize.push(await c.req.json());
  return c.json({ id }, 202);
});

app.get("/images/:id/progress", (c) => wl.handle(c.req.param("id")).response(c.req.raw));

app.onError((error, c) => {
  if (!(error instanceof InvalidPayload)) {
    throw error;
  }
  return c.json({ issues: error.issues }, 400);
});
