// ioredis or iovalkey: arguments are the port, the protocol and the package.
const assert = require("node:assert");

async function main(port, protocol, library) {
  const { Redis } = require(library);
  const client = new Redis({ port, protocol, lazyConnect: true, retryStrategy: null });
  client.on("error", (error) => { throw error; });
  await client.connect();
  assert.strictEqual(await client.ping(), "PONG");
  const name = library + protocol;
  assert.deepStrictEqual(await client.call("CL.THROTTLE", name, 15, 30, 60), [0, 16, 15, -1, 2]);
  const taken = await client.call("SG.TAKE", name + " take", "fixed-window:60/1h", "COST", 2);
  assert.deepStrictEqual(taken.slice(0, 4), [1, 60, 58, 0]);

  const pipeline = client.pipeline();
  for (let index = 0; index < 100; index++) {
    pipeline.call("SG.TAKE", name + " many", "fixed-window:60/1h");
  }
  const answers = await pipeline.exec();
  assert.deepStrictEqual(
    answers.map(([error, answer]) => (error ? error : answer[0])),
    [...Array(60).fill(1), ...Array(40).fill(0)],
  );
  await assert.rejects(client.call("SG.TAKE", "key", "nonsense"), /SGPOLICY /);
  assert.match(await client.info(), /redis_mode:standalone/);
  assert.strictEqual(await client.quit(), "OK");
}

main(Number(process.argv[2]), Number(process.argv[3]), process.argv[4]);
