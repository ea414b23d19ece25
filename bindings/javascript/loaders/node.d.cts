/** Compiles the module of the core. */
export declare function load(): WebAssembly.Module;
