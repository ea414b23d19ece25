-- One decision on several keys, all or nothing.
--
-- KEYS     the keys
-- ARGV[1]  take or peek
-- ARGV[2]  calendars, as in main.lua; or empty
-- ARGV[3]  for tests only: the time, as in main.lua; else empty
-- ARGV[4]  and on, two for each key: the cost, and the policy as in main.lua
-- reply    the seven integers of a decision for each key, one behind the other: allowed, or when it would
--          be. Where any is denied none was charged. Or calendars to be given, as in main.lua.
local operation, calendars, at = ARGV[1], ARGV[2], ARGV[3] ~= '' and ARGV[3] or nil
local now, failed = clock(at)
if not now then
    return failed
end

local keys, allowed = {}, true
for i = 1, #KEYS do
    local cost, policy = tonumber(ARGV[2 * i + 2]), ARGV[2 * i + 3]
    local bytes, limits, changed
    bytes, failed = get(KEYS[i])
    if failed then
        return failed
    end
    limits, changed = read_key(KEYS[i], bytes, policy, now, given(calendars, now))
    if not limits then
        return changed
    end
    allowed = allowed and (cost == 0 or longest_wait(limits, now, cost) == 0)
    keys[i] = { limits = limits, cost = cost, bytes = bytes, changed = changed }
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
            failed, untouched = store(KEYS[i], limits, now, at, keys[i].bytes), false
        elseif operation == 'take' then
            local noted
            noted, failed = note_denial(KEYS[i], limits, now, at, keys[i].bytes, keys[i].changed, cost)
            untouched = not noted
        end
        if failed then
            return failed
        end
    end
    if untouched and operation == 'take' and keys[i].bytes then
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
