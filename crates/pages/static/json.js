// JSON as text: its numbers may have more digits than a JavaScript number can represent.

// Splits valid JSON into strings, punctuation and other values, without white space.
function* tokens(text) {
  const PUNCTUATION = "{}[],:";
  for (let at = 0, end; at < text.length; at = end) {
    end = at + 1;
    if (text[at] === '"') {
      while (end < text.length && text[end] !== '"') end += text[end] === "\\" ? 2 : 1;
      end += 1;
    } else if (!PUNCTUATION.includes(text[at])) {
      while (end < text.length && text[end] !== '"' && !PUNCTUATION.includes(text[end])) end += 1;
    }
    const token = text.slice(at, end).trim();
    if (token) yield token;
  }
}

const opens = (token) => token === "{" || token === "[";
const closes = (token) => token === "}" || token === "]";

// The members of an object as a map from name to JSON text.
export function parseMembers(text) {
  const members = new Map();
  let depth = 0, name, value = "";
  for (const token of tokens(text)) {
    if (closes(token)) depth -= 1;
    if (depth === 1 && token === ":") {
      name = JSON.parse(value);
      value = "";
    } else if (depth === 0 || depth === 1 && token === ",") {
      if (name !== undefined) members.set(name, value);
      name = undefined;
      value = "";
    } else {
      value += token;
    }
    if (opens(token)) depth += 1;
  }
  return members;
}

// The object with these members. A value is JSON text or again a map of members.
export function serializeMembers(members) {
  const member = ([name, value]) => `${JSON.stringify(name)}:${value instanceof Map ? serializeMembers(value) : value}`;
  return `{${[...members].map(member).join(",")}}`;
}

// Indented JSON, one member per line.
export function pretty(text) {
  let depth = 0, last = "", lines = "";
  for (const token of tokens(text)) {
    if (closes(token)) depth -= 1;
    // Empty objects and arrays stay on one line.
    if (opens(last) !== closes(token) || last === ",") lines += `\n${"  ".repeat(depth)}`;
    lines += token === ":" ? ": " : token;
    if (opens(token)) depth += 1;
    last = token;
  }
  return lines;
}
