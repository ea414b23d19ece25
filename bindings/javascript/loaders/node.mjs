import { readFileSync } from "node:fs";

/** Compiles the module of the core. */
export function load() {
  return new WebAssembly.Module(readFileSync(new URL("./sluicegate.wasm", import.meta.url)));
}
