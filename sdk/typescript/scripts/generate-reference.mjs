// Prints the reference of every export, from the declarations in dist/esm. `scripts/sdk --generate` writes it into
// docs/reference/typescript.md.

import { readFileSync } from "node:fs";
import { posix } from "node:path";

const MODULES = [
  ["windlass", "index.d.ts"],
  ["windlass/testing", "testing/index.d.ts"],
  ["windlass/react", "react/index.d.ts"],
];
const KINDS = [
  ["Classes and functions", ({ text }) => /^(abstract )?class |^function /.test(text)],
  ["Types", ({ text, file }) => /^(interface|type) /.test(text) && file !== "wire.d.ts"],
  ["Data of the HTTP API", ({ text, file }) => /^(interface|type) /.test(text) && file === "wire.d.ts"],
];

const read = (file) => readFileSync(new URL(`../dist/esm/${file}`, import.meta.url), "utf8");

/** The names that a module exports, each with the file that declares it. */
function exportsOf(file) {
  const lists = read(file).matchAll(/^export (?:type )?\{([^}]*)\} from "([^"]+)\.js";$/gm);
  const listed = [...lists].flatMap(([, names, from]) =>
    names
      .split(",")
      .map((name) => name.trim().replace(/^type /, ""))
      .filter((name) => name !== "")
      .map((name) => ({ name, file: posix.join(posix.dirname(file), `${from}.d.ts`) })),
  );
  const declared = [
    ...read(file).matchAll(/^export (?:declare )?(?:abstract )?(?:class|function|interface|type) (\w+)/gm),
  ];
  return [...declared.map(([, name]) => ({ name, file })), ...listed];
}

/** Splits a declaration and its comment out of a file. */
function declarationOf({ name, file }) {
  const pattern = new RegExp(
    // The comment, then the declaration until its end: a bracket or a semicolon at the end of an unindented line.
    String.raw`/\*\*((?:(?!\*/)[\s\S])*)\*/\nexport (?:declare )?((?:abstract )?(?:class|function|interface|type) ${name}\b[\s\S]*?(?:;|\}))\n(?=[^\s}]|$)`,
  );
  const [, comment, text] = pattern.exec(read(file)) ?? [];
  if (text === undefined) {
    throw new Error(`${file} has no documented declaration of ${name}`);
  }
  return {
    name,
    file,
    comment: wrapped(comment.replaceAll(/^\s*\*? ?/gm, "")),
    text: text.replace("    #private;\n", ""),
  };
}

function wrapped(text) {
  const lines = [""];
  for (const word of text.trim().split(/\s+/)) {
    const line = lines.at(-1);
    if (line !== "" && line.length + word.length >= 120) {
      lines.push(word);
    } else {
      lines[lines.length - 1] = line === "" ? word : `${line} ${word}`;
    }
  }
  return lines.join("\n");
}

const lines = [];
const shown = new Set();
for (const [module, file] of MODULES) {
  lines.push("", `## \`${module}\``);
  const declarations = exportsOf(file)
    .filter(({ name }) => !shown.has(name))
    .map(declarationOf);
  for (const [title, isOfKind] of KINDS) {
    const found = declarations.filter(isOfKind).sort((one, other) => (one.name < other.name ? -1 : 1));
    if (found.length > 0) {
      lines.push("", `### ${title}`);
    }
    for (const { name, comment, text } of found) {
      shown.add(name);
      lines.push("", `#### ${name}`, "", comment, "", "```ts", text.replaceAll("    ", "  "), "```");
    }
  }
}
console.log(lines.join("\n").trim());
