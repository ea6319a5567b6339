// Verifies a webhook as it came in with npm's `standardwebhooks`: a JSON file {headers, body} and the secret.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [folder, file, secret] = process.argv.slice(2);
const { Webhook } = createRequire(folder + "/")("standardwebhooks");
const { headers, body } = JSON.parse(readFileSync(file, "utf8"));
const verified = new Webhook(secret).verify(body, headers);
if (verified.type !== JSON.parse(body).type) throw new Error("another message came out");

let refused = false;
try {
    new Webhook(secret).verify(body + " ", headers);
} catch {
    refused = true;
}
if (!refused) throw new Error("a changed body was accepted");
