// Installs the packed package into an empty folder and uses it there: the quick start of the README on a real server, an
// import and a `require` of every entry point, and a strict compilation of both.
//
//   WINDLASS_BIN=… node scripts/check-package.mjs FOLDER

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { startServer } from "../dist/esm/testing/index.js";
import { codeBlocks } from "./extract-code.mjs";

const sdk = resolve(import.meta.dirname, "..");
const folder = resolve(process.argv[2]);
const run = (program, parameters, environment = {}, cwd = folder) =>
  execFileSync(program, parameters, {
    cwd,
    env: { ...process.env, ...environment },
    encoding: "utf8",
    timeout: 120_000,
  });

rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
const [{ filename, files }] = JSON.parse(
  run("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", folder], {}, sdk),
);
const outside = files
  .map(({ path }) => path)
  .filter((path) => !/^(dist\/|LICENSE$|README\.md$|package\.json$)/.test(path));
assert.deepEqual(outside, [], "files that do not belong into the package");
writeFileSync(join(folder, "package.json"), "{}\n");
run("npm", ["install", "--no-audit", "--no-fund", "--offline", "--omit=peer", `./${filename}`]);
const installed = run("ls", ["-A", "node_modules"])
  .split("\n")
  .filter((name) => name !== "" && !name.startsWith("."));
assert.deepEqual(installed, ["windlass"], "the package has dependencies");

const [quickStart] = codeBlocks(join(sdk, "README.md"), ["js"]);
const lines = quickStart.text.split("\n").filter((line) => line !== "");
assert.ok(lines.length <= 10, `the quick start has ${lines.length} lines`);
writeFileSync(join(folder, "quick-start.mjs"), quickStart.text);
const server = await startServer();
try {
  assert.equal(
    run(process.execPath, ["quick-start.mjs"], { WINDLASS_URL: server.url }),
    "Hello, Ada! This is attempt 1.\n",
  );
} finally {
  await server.stop();
}

const source = `import { Windlass, type JobHandle } from "windlass";
import { fake } from "windlass/testing";
const wl = new Windlass();
const job = wl.job("typed", {}, (_ctx, { n }: { n: number }) => n);
const flow = wl.workflow("flow", {}, async (ctx, { n }: { n: number }) => {
  await ctx.sleep("3d");
  return ctx.step("add", () => n + 1);
});
const parent = wl.workflow("parent", {}, async (ctx) => {
  const [seven, eight] = await ctx.gather([ctx.spawn(job, { n: 7 }), ctx.spawn(flow, { n: 7 })]);
  return seven * eight;
});
fake(wl, { inline: true });
const handle: Promise<JobHandle<number>> = parent.push();
handle.then((pushed) => pushed.wait()).then((result: number) => console.log(result));
`;
for (const extension of ["mts", "cts"]) {
  writeFileSync(join(folder, `consumer.${extension}`), source);
}
const options = ["--strict", "--module", "node20", "--target", "es2022", "--lib", "es2023,dom", "--types", ""];
run(join(sdk, "node_modules/.bin/tsc"), [...options, "--skipLibCheck", "false", "consumer.mts", "consumer.cts"]);
assert.equal(run(process.execPath, ["consumer.mjs"]), "56\n");
assert.equal(run(process.execPath, ["consumer.cjs"]), "56\n");
console.log(`${filename}: ${files.length} files; the quick start, ESM and CommonJS work`);
