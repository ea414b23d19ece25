import module from "./sluicegate.wasm";

/** The module of the core, which workers compile before they start. */
export function load() {
  return module;
}
