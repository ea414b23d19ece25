// The package as npm packs it: contents, size, types, and the time of its import.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const PACKAGE = fileURLToPath(new URL("../", import.meta.url));

function output(command, ...words) {
  const { stdout, stderr, status } = spawnSync(command, words, { cwd: PACKAGE, encoding: "utf8", timeout: 120_000 });
  assert.equal(status, 0, stdout + stderr);
  return stdout;
}

test("package_is_small_and_has_nothing_but_what_it_needs", () => {
  const [{ size, files }] = JSON.parse(output("npm", "pack", "--dry-run", "--json"));
  console.log(`figure: the package is ${Math.round(size / 1000)} kB compressed`);
  assert.ok(size <= 350_000, `${size} bytes`);
  const kinds = new Set(files.map(({ path }) => path.replace(/^dist\/(esm|cjs)\/[\w-]+(\.d\.ts|\.js)$/, "dist/$1/*$2")));
  const expected = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "dist/cjs/*.d.ts", "dist/cjs/*.js", "dist/cjs/package.json", "dist/esm/*.d.ts", "dist/esm/*.js"];
  const module = ["library.cjs", "library.d.cts", "node.cjs", "node.d.cts", "node.d.mts", "node.mjs", "sluicegate.wasm", "workerd.d.mts", "workerd.mjs"];
  assert.deepEqual([...kinds].sort(), [...expected, ...module.map((it) => `dist/module/${it}`), "package.json"].sort());
});

test("package_passes_publint_and_types_are_right_for_every_resolution", () => {
  assert.match(output("node_modules/.bin/publint", "--strict"), /All good/);
  assert.match(output("node_modules/.bin/attw", "--pack", ".", "--no-color", "--no-emoji"), /No problems found/);
});

test("publish_dry_run_is_clean", () => {
  const { stderr, status } = spawnSync("npm", ["publish", "--dry-run", "--ignore-scripts"], { cwd: PACKAGE, encoding: "utf8" });
  assert.equal(status, 0, stderr);
  const warnings = stderr.split("\n").filter((line) => /npm warn/i.test(line) && !/requires you to be logged in/.test(line));
  assert.deepEqual(warnings, []);
});

test("import_is_quick", () => {
  // Without the time of the first module, which starts the loader.
  const program = `await import("node:path"); await import("data:text/javascript,"); const start = performance.now(); await import("sluicegate"); console.log(performance.now() - start);`;
  const times = Array.from({ length: 5 }, () => Number(output(process.execPath, "--input-type=module", "-e", program)));
  const best = Math.min(...times);
  console.log(`figure: the import takes ${best.toFixed(1)} ms`);
  // A busy machine takes longer than the 30 ms that the benchmark shows.
  assert.ok(best < 100, `${times}`);
});
