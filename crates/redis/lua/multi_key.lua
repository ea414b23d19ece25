-- The last part of the script for several keys.
--
-- KEYS     the keys
-- ARGV[1]  take, peek or hold
-- ARGV[2]  calendars, as in main.lua; or empty
-- ARGV[3]  for tests only: the time, as in main.lua; else empty
-- ARGV[4]  the id of the hold; else empty
-- ARGV[5]  and on, three for each key: the cost, the policy as in main.lua, and the lifetime of the hold
-- reply    that of decide_all.lua. Or calendars to send, as in main.lua.
local operation, calendars, at, id = ARGV[1], ARGV[2], ARGV[3] ~= '' and ARGV[3] or nil, ARGV[4]
local now, failed = clock(at)
if not now then
    return failed
end
local takes = {}
for i = 1, #KEYS do
    takes[i] = { key = KEYS[i], cost = tonumber(ARGV[3 * i + 2]), policy = ARGV[3 * i + 3], ttl = tonumber(ARGV[3 * i + 4]) }
end
return decide_all(takes, operation, now, at, given(calendars), id)
