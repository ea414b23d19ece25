import { run, TESTS } from "./portable.mjs";

console.log(JSON.stringify({ tests: Object.keys(TESTS).length, failures: await run() }));
