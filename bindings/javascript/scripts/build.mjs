// Compiles the sources as ECMAScript modules and as CommonJS, beside the module that `cargo xtask wasm` has built.

import { spawnSync } from "node:child_process";
import { cpSync, existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
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
  // Comments are for editors, which read them in the types.
  for (const pass of [["--emitDeclarationOnly"], ["--declaration", "false", "--removeComments"]]) {
    const words = [at("node_modules/typescript/bin/tsc"), "-p", at("."), "--outDir", at(`dist/${folder}`), ...options, ...pass];
    const { status } = spawnSync(process.execPath, words, { stdio: "inherit" });
    if (status !== 0) process.exit(1);
  }
}
// The compiler indents by four spaces, of which one is enough. No text of the sources has more than one line.
for (const path of ["esm", "cjs"].flatMap((folder) => readdirSync(at(`dist/${folder}`)).map((name) => at(`dist/${folder}/${name}`)))) {
  if (path.endsWith(".js")) writeFileSync(path, readFileSync(path, "utf8").replace(/^( {4})+/gm, (it) => " ".repeat(it.length / 4)));
}
writeFileSync(at("dist/cjs/package.json"), '{ "type": "commonjs" }\n');
// A folder with a type of its own has no imports: CommonJS is for Node alone, which needs no condition.
const own = { "#library": "../module/library.cjs", "#module": "../module/node.cjs" };
for (const name of readdirSync(at("dist/cjs")).filter((it) => it.endsWith(".js"))) {
  const path = at(`dist/cjs/${name}`);
  writeFileSync(path, readFileSync(path, "utf8").replace(/"(#library|#module)"/g, (_, it) => `"${own[it]}"`));
}
