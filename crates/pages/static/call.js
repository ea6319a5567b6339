// Asks the server, always by the same routes that programs use.
export const root = new URL(document.documentElement.dataset.root, location.href);

export class Refused extends Error {
  constructor(problem) {
    super(problem.detail || problem.title || "It did not work");
    this.field = problem.field;
    this.code = problem.code;
  }
}

export async function call(method, path, body) {
  const text = await ask(method, path, body);
  return text ? JSON.parse(text) : null;
}

// The same with the answer as text. A body that is text is JSON already and goes as it stands.
export async function ask(method, path, body) {
  const request = { method, headers: { accept: "application/json" }, credentials: "same-origin" };
  if (body !== undefined) {
    request.headers["content-type"] = "application/json";
    request.body = typeof body === "string" ? body : JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(new URL(path, root), request);
  } catch {
    throw new Refused({ detail: "The server cannot be reached; nothing is known to have changed." });
  }
  const text = await answer.text();
  if (!answer.ok) throw new Refused(problem(text) ?? { detail: `The server said ${answer.status}.` });
  return text;
}

// What a proxy says in between is none of ours.
function problem(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
