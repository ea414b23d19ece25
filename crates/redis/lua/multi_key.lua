-- One decision on several keys, all or nothing.
--
-- KEYS     the keys
-- ARGV[1]  take, peek or hold
-- ARGV[2]  calendars, as in main.lua; or empty
-- ARGV[3]  for tests only: the time, as in main.lua; else empty
-- ARGV[4]  the id of the hold; else empty
-- ARGV[5]  and on, three for each key: the cost, the policy as in main.lua, and the lifetime of the hold
-- reply    the seven integers of a decision for each key, one behind the other: allowed, or when it would
--          be. Where any is denied none was charged. Or calendars to be given, as in main.lua.
local operation, calendars, at, id = ARGV[1], ARGV[2], ARGV[3] ~= '' and ARGV[3] or nil, ARGV[4]
local holds = operation == 'hold' and with_holds()
local now, failed = clock(at)
if not now then
    return failed
end

local keys, allowed = {}, true
for i = 1, #KEYS do
    local cost, policy = tonumber(ARGV[3 * i + 2]), ARGV[3 * i + 3]
    local bytes, limits, changed
    bytes, failed = get(KEYS[i])
    if failed then
        return failed
    end
    limits, changed = read_key(KEYS[i], bytes, policy, now, given(calendars))
    if not limits then
        return changed
    end
    -- A key in which the hold is open is allowed as it stands.
    if holds and holds.is_open(limits, id) then
        cost = 0
    end
    allowed = allowed and (cost == 0 or longest_wait(limits, now, cost) == 0)
    keys[i] = { limits = limits, cost = cost, bytes = bytes, changed = changed }
end

for i = 1, holds and allowed and #keys or 0 do
    failed = keys[i].cost > 0 and holds.full(keys[i].limits)
    if failed then
        return failed
    end
end

local reply = {}
for i = 1, #keys do
    local limits, cost, delay, untouched = keys[i].limits, keys[i].cost, 0, true
    if cost > 0 then
        if allowed then
            delay = longest_delay(limits, now)
        end
        if operation == 'take' and allowed then
            charge(limits, now, cost)
        elseif holds and allowed then
            holds.open(limits, id, cost, now + tonumber(ARGV[3 * i + 4]))
        end
        if operation ~= 'peek' and allowed then
            failed, untouched = store(KEYS[i], limits, now, at, keys[i].bytes), false
        elseif operation ~= 'peek' then
            local noted
            noted, failed = note_denial(KEYS[i], limits, now, at, keys[i].bytes, keys[i].changed, cost)
            untouched = not noted
        end
        if failed then
            return failed
        end
    end
    if untouched and operation ~= 'peek' and keys[i].bytes then
        heal(KEYS[i], limits, now, at)
    end
    local wait, binding = 0, nil
    if not allowed and cost > 0 then
        wait, binding = longest_wait(limits, now, cost)
    end
    local told = wait == 0 and tell(limits, now, 1, 0, delay) or tell(limits, now, 0, wait, 0, binding)
    for j = 1, 7 do
        reply[#reply + 1] = told[j]
    end
end
return reply
