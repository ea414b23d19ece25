// Takes through the client of Bun, and prints what it answers. The argument is the URL of a Redis.

import { RedisClient } from "bun";
import { Limiter } from "sluicegate";

const client = new RedisClient(process.argv[2]);
const limiter = Limiter.redis(client, { timeout: 5000 });
const policy = "gcra:1/1h";
const first = await limiter.take("runtime", policy);
await limiter.take("runtime", policy);
const cached = await limiter.take("runtime", policy);
const bytes = new Uint8Array([0, 255, 13, 10]);
const binary = [await limiter.take(bytes, policy), await limiter.take(bytes, policy)];
console.log(JSON.stringify([first.allowed, cached.allowed, cached.source, ...binary.map((it) => it.allowed)]));
client.close();
