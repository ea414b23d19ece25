"""redis-py or valkey-py, blocking and asynchronous: arguments are the package, the port and the protocol."""

import asyncio
import importlib
import sys

package = importlib.import_module(sys.argv[1])
client = package.Redis(host="127.0.0.1", port=int(sys.argv[2]), protocol=int(sys.argv[3]))

assert client.ping() is True
name = sys.argv[1] + sys.argv[3]
throttled = client.execute_command("CL.THROTTLE", name, 15, 30, 60)
assert throttled == [0, 16, 15, -1, 2], throttled
taken = client.execute_command("SG.TAKE", name + " take", "fixed-window:60/1h", "COST", 2)
assert taken[:4] == [1, 60, 58, 0], taken
assert 0 < taken[4] <= 3_600_000_000 and taken[5:] == [0, 0], taken

pipeline = client.pipeline(transaction=False)
for _ in range(100):
    pipeline.execute_command("SG.TAKE", name + " many", "fixed-window:60/1h")
answers = pipeline.execute()
assert [answer[0] for answer in answers] == [1] * 60 + [0] * 40, answers

try:
    client.execute_command("SG.TAKE", "key", "nonsense")
    raise AssertionError("nonsense passed")
except package.ResponseError as error:
    assert str(error).startswith("SGPOLICY "), error

server_info = client.info()
assert server_info["redis_mode"] == "standalone" and server_info["allowed"] > 0, server_info
assert client.exists(name) == 1 and client.delete(name) == 1 and client.dbsize() > 0
assert client.config_get("save") == {"save": ""}
assert client.client_setname("me") and client.client_getname() is not None
assert client.execute_command("QUIT")
client.close()


async def asynchronous():
    client = importlib.import_module(sys.argv[1] + ".asyncio").Redis(
        host="127.0.0.1", port=int(sys.argv[2]), protocol=int(sys.argv[3])
    )
    assert await client.ping() is True
    throttled = await client.execute_command("CL.THROTTLE", name + " async", 15, 30, 60)
    assert throttled == [0, 16, 15, -1, 2], throttled
    pipeline = client.pipeline(transaction=False)
    for _ in range(100):
        pipeline.execute_command("SG.TAKE", name + " async many", "fixed-window:60/1h")
    answers = await pipeline.execute()
    assert [answer[0] for answer in answers] == [1] * 60 + [0] * 40, answers
    try:
        await client.execute_command("SG.TAKE", "key", "nonsense")
        raise AssertionError("nonsense passed")
    except package.ResponseError as error:
        assert str(error).startswith("SGPOLICY "), error
    assert await client.execute_command("QUIT")
    await client.aclose()


asyncio.run(asynchronous())
