// JSON as the text that it is: its numbers may have more digits than a number of this language holds.

// Strings, marks and what stands between them, without the space around it. The text is known to be JSON.
function* tokens(text) {
  const MARKS = "{}[],:";
  for (let at = 0, end; at < text.length; at = end) {
    end = at + 1;
    if (text[at] === '"') {
      while (end < text.length && text[end] !== '"') end += text[end] === "\\" ? 2 : 1;
      end += 1;
    } else if (!MARKS.includes(text[at])) {
      while (end < text.length && text[end] !== '"' && !MARKS.includes(text[end])) end += 1;
    }
    const token = text.slice(at, end).trim();
    if (token) yield token;
  }
}

const opens = (token) => token === "{" || token === "[";
const closes = (token) => token === "}" || token === "]";

// The members of an object, each as text.
export function opened(text) {
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

// The object with these members, which are texts or members themselves.
export function closed(members) {
  const written = ([name, value]) => `${JSON.stringify(name)}:${value instanceof Map ? closed(value) : value}`;
  return `{${[...members].map(written).join(",")}}`;
}

// For people: each member on a line of its own.
export function pretty(text) {
  let depth = 0, last = "", lines = "";
  for (const token of tokens(text)) {
    if (closes(token)) depth -= 1;
    // What is empty stays on its line.
    if (opens(last) !== closes(token) || last === ",") lines += `\n${"  ".repeat(depth)}`;
    lines += token === ":" ? ": " : token;
    if (opens(token)) depth += 1;
    last = token;
  }
  return lines;
}
