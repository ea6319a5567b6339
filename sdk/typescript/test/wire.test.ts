/** The generated types of the HTTP API. */

import { execFile } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { realServer } from "./support.js";

const real = realServer();
const GENERATE = fileURLToPath(new URL("../../scripts/generate-wire.mjs", import.meta.url));

test("the types of the API are those of the server", async () => {
  await promisify(execFile)(process.execPath, [GENERATE, real.url, "--check"]);
});
