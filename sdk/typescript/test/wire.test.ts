/** The generated types of the HTTP API. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const sdk = fileURLToPath(new URL("../../", import.meta.url));

test("the types of the API are those of the server", async () => {
  const { stdout } = await promisify(execFile)(process.execPath, [`${sdk}scripts/generate-wire.mjs`]);
  assert.equal(
    stdout,
    await readFile(`${sdk}src/wire.ts`, "utf8"),
    "write them with: scripts/sdk typescript --generate",
  );
});
