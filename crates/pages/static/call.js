// Calls the JSON API of the server.
export const root = new URL(document.documentElement.dataset.root, location.href);

export class ApiError extends Error {
  constructor(problem) {
    super(problem.detail || problem.title || "The request failed.");
    this.field = problem.field;
    this.code = problem.code;
  }
}

export async function call(method, path, body) {
  const text = await request(method, path, body);
  return text ? JSON.parse(text) : null;
}

// Like `call`, but returns the response as text. A body that is a string is already JSON and is sent unchanged.
export async function request(method, path, body) {
  const options = { method, headers: { accept: "application/json" }, credentials: "same-origin" };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = typeof body === "string" ? body : JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(new URL(path, root), options);
  } catch {
    throw new ApiError({ detail: "Cannot reach the server; the request may not have been applied." });
  }
  const text = await response.text();
  if (!response.ok) throw new ApiError(parseProblem(text) ?? { detail: `Unexpected response: HTTP status ${response.status}.` });
  return text;
}

// null for a response that does not come from Windlass, for example from a proxy.
function parseProblem(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
