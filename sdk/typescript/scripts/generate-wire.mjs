// Prints the types of the HTTP API, from the OpenAPI document of a server. `scripts/sdk --generate` writes them into
// src/wire.ts.
//
//   WINDLASS_BIN=… node scripts/generate-wire.mjs

import { startServer } from "../dist/esm/testing/index.js";

/** The schemas of the document that the SDK exports, with their names here. */
const REQUESTS = [
  "JobRequest",
  "NodeRequest",
  "BatchSettings",
  "DebounceSettings",
  "RetrySettings",
  "WebhookSettings",
  "SignalUpdate",
];
const VIEWS = {
  ArtifactView: "ArtifactView",
  CancelView: "CancelView",
  ClaimedJob: "ClaimedJob",
  ClaimedJournal: "ClaimedJournal",
  JobError: "JobError",
  JobView: "JobView",
  JournalAttempt: "JournalAttempt",
  JournalEntry: "JournalEntry",
  NextAction: "NextAction",
  Problem: "Problem",
  RunCounts: "RunCounts",
  RunNodeView: "RunNodeView",
  RunSignalView: "RunSignal",
  RunView: "RunView",
  SettleView: "SettleView",
  SignalView: "Signal",
  WorkerRegistered: "WorkerRegistered",
};
const DESCRIPTIONS = {
  JobRequest: "The body of `POST /jobs`.",
  ArtifactView: "A stored artifact, without its content.",
  CancelView: "The answer to a cancellation.",
  ClaimedJob: "A job that a worker has claimed.",
  ClaimedJournal: "The journal that comes with a claimed job.",
  JobError: "The error of a failed attempt.",
  JournalAttempt: "A failed attempt of an operation.",
  JournalEntry: "A recorded operation of a job.",
  NextAction: "A link for people in a signal.",
  NodeRequest: "A node of a run. The members other than `needs` and `when` are those of a job.",
  Problem: "An error of the API (RFC 9457).",
  RetrySettings: "Backoff between attempts.",
  RunCounts: "The counts of the jobs of a run.",
  RunNodeView: "A node of a run.",
  RunSignalView: "The current status of a run, for people and user interfaces.",
  RunView: "A run as returned by the API.",
  SettleView: "The answer to a settle, in the order of the request.",
  SignalView: "The current status of a job, for people and user interfaces.",
  WebhookSettings: "The receiver of a job's state changes.",
  WorkerRegistered: "The answer to the registration of a worker.",
};
/** Members with a narrower type than the document states. */
const TYPES = {
  "CancelView.state": "JobState",
  "JournalEntry.op": '"step" | "sleep" | "event" | "approval" | "child" | "publish"',
  "JournalEntry.status": '"open" | "resolved"',
  "JobView.state": "JobState",
  "NodeRequest.when": '"success" | "failure" | "always"',
  "RunNodeView.state": "JobState",
  "RunNodeView.when": '"success" | "failure" | "always"',
  "RunView.on_failure": '"cancel" | "continue"',
  "RunView.state": '"running" | "succeeded" | "failed" | "canceled"',
  "JobRequest.unique_by": '("kind" | "payload")[]',
  "SignalUpdate.state": '"loading" | "working"',
  "SignalView.kind": '"queued" | "started" | "phase" | "blocked" | "failed" | "succeeded" | "canceled" | "unavailable"',
  "SignalUpdate.diagnostics": "Record<string, unknown>",
  "SignalView.diagnostics": "Record<string, unknown>",
};
/** Members that the SDK sets itself. */
const OMITTED = new Set(["SignalUpdate.epoch", "NodeRequest.name"]);

const server = await startServer();
const response = await fetch(new URL("/openapi.json", server.url));
const { schemas } = (await response.json()).components;
await server.stop();

function typeOf(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    const named = VIEWS[name] ?? (REQUESTS.includes(name) ? name : undefined);
    return named ?? typeOf(schemas[name]);
  }
  if (schema.oneOf || schema.anyOf) {
    return [...new Set((schema.oneOf ?? schema.anyOf).map(typeOf))].join(" | ");
  }
  if (Array.isArray(schema.type)) {
    return schema.type.map((type) => typeOf({ ...schema, type })).join(" | ");
  }
  if (schema.enum) {
    return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  }
  switch (schema.type) {
    case "string":
    case "boolean":
    case "null":
      return schema.type;
    case "integer":
    case "number":
      return "number";
    case "array": {
      const item = typeOf(schema.items);
      return item.includes(" ") ? `(${item})[]` : `${item}[]`;
    }
    case "object":
      return schema.properties
        ? `{ ${Object.entries(schema.properties)
            .map(([name, member]) => `${name}: ${typeOf(member)}`)
            .join("; ")} }`
        : "Record<string, unknown>";
    default:
      return "unknown";
  }
}

function describe(text) {
  const lines = [];
  for (const word of text.replaceAll(/\s+/g, " ").split(" ")) {
    const line = lines.at(-1);
    if (line !== undefined && line.length + word.length < 110) {
      lines[lines.length - 1] = `${line} ${word}`;
    } else {
      lines.push(word);
    }
  }
  return lines;
}

function comment(text, indent) {
  const lines = describe(text);
  return lines.length === 1
    ? [`${indent}/** ${lines[0]} */`]
    : [`${indent}/**`, ...lines.map((line) => `${indent} * ${line}`), `${indent} */`];
}

function interfaceOf(name, exported, isRequest) {
  const schema = schemas[name];
  if (schema === undefined) {
    throw new Error(`the document has no schema ${name}`);
  }
  const lines = [...comment(DESCRIPTIONS[name] ?? schema.description, ""), `export interface ${exported} {`];
  for (const [member, property] of Object.entries(schema.properties)) {
    if (OMITTED.has(`${name}.${member}`)) {
      continue;
    }
    const description = property.description ?? property.oneOf?.find((part) => part.description)?.description;
    if (description === undefined) {
      throw new Error(`${name}.${member} has no description`);
    }
    const type = TYPES[`${name}.${member}`] ?? typeOf(property);
    const isRequired = schema.required?.includes(member);
    lines.push(...comment(description, "  "));
    // A request leaves a member out instead of sending `null`.
    lines.push(`  ${member}${isRequired ? "" : "?"}: ${isRequest ? type.replace(/ \| null$/, "") : type};`);
  }
  return [...lines, "}"].join("\n");
}

const parts = [
  `/**
 * The data of the HTTP API. Members have the names of the API (\`snake_case\`), so that its reference applies unchanged.
 * Generated from the server's OpenAPI document by scripts/generate-wire.mjs.
 */`,
  `/** The state of a job. \`succeeded\`, \`failed\` and \`canceled\` are final. */
export type JobState = "waiting" | "scheduled" | "queued" | "loading" | "working" | "succeeded" | "failed" | "canceled";`,
  ...REQUESTS.map((name) => interfaceOf(name, name, true)),
  ...Object.entries(VIEWS).map(([name, exported]) => interfaceOf(name, exported, false)),
];
console.log(parts.join("\n\n"));
