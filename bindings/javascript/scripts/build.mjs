// Compiles the sources as ECMAScript modules and as CommonJS, beside the module that `cargo xtask wasm` has built.

import { spawnSync } from "node:child_process";
import { cpSync, existsSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const at = (path) => fileURLToPath(new URL(`../${path}`, import.meta.url));

for (const needed of ["dist/module/sluicegate.wasm", "dist/module/library.cjs"]) {
  if (!existsSync(at(needed))) {
    console.error(`${needed} is missing: run \`cargo xtask wasm\``);
    process.exit(1);
  }
}
for (const name of ["LICENSE-MIT", "LICENSE-APACHE"]) cpSync(at(`../../${name}`), at(name));
// First, because the sources import them.
cpSync(at("loaders"), at("dist/module"), { recursive: true });
for (const [folder, options] of [
  ["esm", []],
  ["cjs", ["--module", "commonjs", "--moduleResolution", "bundler"]],
]) {
  rmSync(at(`dist/${folder}`), { recursive: true, force: true });
  const { status } = spawnSync(process.execPath, [at("node_modules/typescript/bin/tsc"), "-p", at("."), "--outDir", at(`dist/${folder}`), ...options], { stdio: "inherit" });
  if (status !== 0) process.exit(1);
}
// A folder with another type has imports of its own, and none of them may leave it.
const imports = { "#library": "./library.cjs", "#module": "./module.cjs" };
writeFileSync(at("dist/cjs/package.json"), `${JSON.stringify({ type: "commonjs", imports })}\n`);
writeFileSync(at("dist/cjs/library.cjs"), 'module.exports = require("../module/library.cjs");\n');
writeFileSync(at("dist/cjs/module.cjs"), 'module.exports = require("../module/node.cjs");\n');
