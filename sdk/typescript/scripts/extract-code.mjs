// Writes the TypeScript blocks of documents as modules into a folder, to be compiled.
//
//   node scripts/extract-code.mjs FOLDER DOCUMENT…

import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";

/** The code blocks of a Markdown document in some languages. */
export function codeBlocks(document, languages) {
  const blocks = readFileSync(document, "utf8").matchAll(/^```(\w+)\n([\s\S]*?)^```$/gm);
  return [...blocks]
    .filter(([, language]) => languages.includes(language))
    .map(([, language, text]) => ({ language, text }));
}

if (import.meta.filename === process.argv[1]) {
  const [folder, ...documents] = process.argv.slice(2);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  for (const document of documents) {
    for (const [index, { language, text }] of codeBlocks(document, ["ts", "tsx"]).entries()) {
      writeFileSync(join(folder, `${basename(document, ".md")}-${index + 1}.${language}`), text);
    }
  }
}
