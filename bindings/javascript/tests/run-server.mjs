// Takes through a server, and prints what it answers. The argument is its URL.

import { Limiter } from "sluicegate";

const url = globalThis.Deno?.args[0] ?? process.argv[2];
const limiter = Limiter.server(url, { timeout: 5000 });
const policy = "gcra:1/1h";
const first = await limiter.take("runtime", policy);
await limiter.take("runtime", policy);
const cached = await limiter.take("runtime", policy);
console.log(JSON.stringify([first.allowed, cached.allowed, cached.source]));
await limiter.close();
