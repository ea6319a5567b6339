/** A real server with a database of its own, for tests. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, open, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Windlass, type WindlassOptions } from "../windlass.js";

/** How long a server may take to start. */
const START_MS = 30_000;

/** The servers that run. They end with this process. */
const running = new Set<ChildProcess>();
process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});

/** Options of `startServer`. */
export interface ServerOptions {
  /** The program. Default: `WINDLASS_BIN`, else `windlass` on `PATH`. */
  binary?: string;
  /** The database. Default: a new SQLite file that is deleted at the end. */
  database?: string;
  /** Further arguments of `windlass serve`. */
  args?: string[];
}

/** A running server. */
export class TestServer {
  /** The folder of the database and of `server.log`, deleted by `stop`. */
  readonly folder: string;
  /** The address of the database. */
  readonly database: string;
  readonly #options: ServerOptions;
  #child: ChildProcess | undefined;
  #url = "";

  /** @internal */
  constructor(folder: string, options: ServerOptions) {
    this.folder = folder;
    this.database = options.database ?? `sqlite:${join(folder, "windlass.db")}`;
    this.#options = options;
  }

  /** The address. It remains the same when the server is started again. */
  get url(): string {
    return this.#url;
  }

  /** Creates a client of this server. */
  client(options: Omit<WindlassOptions, "url"> = {}): Windlass {
    return new Windlass({ ...options, url: this.url });
  }

  /** Starts the server again after `kill`, with the same address and database. */
  async start(): Promise<void> {
    const { binary = process.env["WINDLASS_BIN"] || "windlass", args = [] } = this.#options;
    const listen = this.#url === "" ? "127.0.0.1:0" : new URL(this.#url).host;
    const log = await open(join(this.folder, "server.log"), "a");
    const parameters = ["serve", "--database", this.database, "--listen", listen, ...args];
    // Settings of other servers must not steer this one.
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("WINDLASS_")));
    const child = spawn(binary, parameters, { cwd: this.folder, env, stdio: ["ignore", "pipe", log.fd] });
    this.#child = child;
    running.add(child);
    child.once("exit", () => running.delete(child));
    let reason = "it ended";
    child.once("error", ({ message }) => {
      reason = message;
    });
    await log.close();
    const timer = setTimeout(() => child.kill("SIGKILL"), START_MS);
    const stdout = child.stdout as NonNullable<typeof child.stdout>;
    let text = "";
    for await (const chunk of stdout.setEncoding("utf8").iterator({ destroyOnReturn: false })) {
      text += chunk;
      if (text.includes("\n")) break;
    }
    clearTimeout(timer);
    stdout.resume();
    this.#url = / on (http:\/\/[^\s,]+)/.exec(text)?.[1] ?? "";
    if (this.#url === "") {
      const lines = await readFile(join(this.folder, "server.log"), "utf8");
      throw new Error(`${binary} did not start (${reason}); WINDLASS_BIN names the server's program\n${text}${lines}`);
    }
  }

  /** Ends the server with SIGKILL. `start` starts it again. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** Ends the server and deletes its folder. */
  async stop(): Promise<void> {
    await this.#end("SIGTERM");
    await rm(this.folder, { recursive: true, force: true });
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child;
    this.#child = undefined;
    if (child?.pid !== undefined && child.exitCode === null && child.signalCode === null) {
      const ended = once(child, "exit");
      child.kill(signal);
      await ended;
    }
  }
}

/** Starts a real server on a free port with a database of its own. Stop it at the end of the test. */
export async function startServer(options: ServerOptions = {}): Promise<TestServer> {
  const server = new TestServer(await mkdtemp(join(tmpdir(), "windlass-test-")), options);
  try {
    await server.start();
  } catch (error) {
    await server.stop();
    throw error;
  }
  return server;
}
