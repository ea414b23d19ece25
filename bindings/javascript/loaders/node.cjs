const { readFileSync } = require("node:fs");
const { join } = require("node:path");

/** Compiles the module of the core. */
exports.load = function load() {
  return new WebAssembly.Module(readFileSync(join(__dirname, "sluicegate.wasm")));
};
