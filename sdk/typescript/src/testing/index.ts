/**
 * Helpers for tests: a fake client, and a real server with a database of its own.
 *
 * @packageDocumentation
 */

export { Fake, type FakeJob, type FakeOptions, fake } from "./fake.js";
export { type ServerOptions, startServer, TestServer } from "./server.js";
