// An Express application that pushes jobs and sends their progress to browsers.

import express from "express";
import { InvalidPayload } from "windlass";
import { resize, wl } from "./jobs.js";

export const app = express();
app.use(express.json());

app.post("/images", async (request, response) => {
  try {
    const { id } = await resize.push(request.body);
    response.status(202).json({ id });
  } catch (error) {
    if (!(error instanceof InvalidPayload)) {
      throw error;
    }
    response.status(400).json({ issues: error.issues });
  }
});

app.get("/images/:id/progress", async (request, response) => {
  const closed = new AbortController();
  response.on("close", () => closed.abort());
  response.type("text/event-stream");
  for await (const signal of wl.handle(request.params.id).stream({ signal: closed.signal })) {
    response.write(`event: signal\ndata: ${JSON.stringify(signal)}\n\n`);
  }
  response.end();
});
