-- Fails where a take would: on a server that takes no writes, has no memory left, or does not let the user run the
-- commands of a take. The key does not exist, so nothing is changed and replicated.
--
-- KEYS[1]  the key; in a cluster ARGV[1], since any node is probed
-- reply    what went wrong, else nothing
local key = KEYS[1] or ARGV[1]
for _, call in ipairs({ { 'SET', key, '', 'XX', 'PX', '1' }, { 'GET', key }, { 'TIME' } }) do
    local reply = redis.pcall(unpack(call))
    if type(reply) == 'table' and reply.err then
        return reply
    end
end
return false
