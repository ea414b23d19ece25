// node-redis: arguments are the port and the protocol.
const assert = require("node:assert");
const { createClient } = require("redis");

async function main(port, protocol) {
  const client = createClient({ socket: { port, reconnectStrategy: false }, RESP: protocol });
  client.on("error", (error) => { throw error; });
  await client.connect();
  assert.strictEqual(await client.ping(), "PONG");
  const name = `node-redis${protocol}`;
  const throttled = await client.sendCommand(["CL.THROTTLE", name, "15", "30", "60"]);
  assert.deepStrictEqual(throttled, [0, 16, 15, -1, 2]);
  const take = ["SG.TAKE", name + " take", "fixed-window:60/1h", "COST", "2"];
  assert.deepStrictEqual((await client.sendCommand(take)).slice(0, 4), [1, 60, 58, 0]);

  // Commands of one turn of the event loop go out as one pipeline.
  const many = ["SG.TAKE", name + " many", "fixed-window:60/1h"];
  const answers = await Promise.all(Array.from({ length: 100 }, () => client.sendCommand(many)));
  assert.deepStrictEqual(
    answers.map((answer) => answer[0]),
    [...Array(60).fill(1), ...Array(40).fill(0)],
  );
  await assert.rejects(client.sendCommand(["SG.TAKE", "key", "nonsense"]), /SGPOLICY /);
  assert.match(await client.info(), /redis_mode:standalone/);
  assert.strictEqual(await client.sendCommand(["QUIT"]), "OK");
  client.destroy();
}

main(Number(process.argv[2]), Number(process.argv[3]));
