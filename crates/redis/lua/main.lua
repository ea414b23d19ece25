-- The last part of a script for one key: it reads the request, the clock and the calendars, and decides.
--
-- KEYS[1]  the key
-- ARGV[1]  take, peek, charge, refund, reserve, reset, hold, settle or renew; or the request of fast_gcra.lua or fast_log.lua
-- ARGV[2]  the cost, 0 ..= 4294967295; for settle the units used, or empty: the units held
-- ARGV[3]  the policy: the byte form of an unused key (docs/state-format.md)
-- ARGV[4]  for reserve the longest wait in microseconds, at most 2^53; for hold and renew the lifetime in
--          microseconds; else empty or omitted
-- ARGV[5]  calendars, one after the other: unit (1 byte), length and name of the zone as in the byte
--          form, and five times (7 bytes each) at which windows of it begin; or empty, or omitted
-- ARGV[6]  for tests only: the time in microseconds since the Unix epoch. The key must then begin
--          with `sg:test:`, and lives for an hour at least. Else empty, or omitted
-- ARGV[7]  for hold, settle and renew, the id
-- reply    the seven integers of a decision: allowed (1 or 0), limit, remaining, retry after (-1:
--          never), reset after, delay, binding; times in microseconds. Or, if the windows of a
--          calendar around the server's time are not among those given: that time, and the unit and
--          the zone of all calendars to send, in the form above. The client must then run the script
--          again; nothing was stored.
local operation, cost, max_wait, policy, calendars, at, id = nil, nil, nil, nil, '', nil, nil
if #ARGV[1] == 36 then
    cost, policy = unpack('<I4xxxxxxxxxxxxxxxc17', ARGV[1])
    local limit = read_limit(policy, 3)
    policy = limit and sub(policy, 1, 2) .. limit.kind.save(limit) or policy
    operation, at = 'take', ARGV[2]
elseif #ARGV[1] == 27 then
    cost, policy = unpack('<I4xxxxxxxxxxc13', ARGV[1])
    operation, policy, at = 'take', policy .. '\0\0\0\0', ARGV[2]
else
    operation, cost, policy, max_wait, calendars, at, id =
        ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4] or 0), ARGV[5] or '', ARGV[6], ARGV[7]
    at = at ~= '' and at or nil
end

local now, failed = clock(at)
if not now then
    return failed
end
return decide(KEYS[1], operation, cost, max_wait, policy, now, at, given(calendars), id)
