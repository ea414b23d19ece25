-- One decision on several keys, all or nothing. Each take has a name (`key`), `cost`, `policy` as `decide` takes it,
-- and for a hold its lifetime (`ttl`). `operation`: take, peek or hold; `id` is that of the hold.
--
-- Returns the seven integers of a decision for each key, one after the other: allowed, or when it would be. If any is
-- denied none was charged. Or the reply of `read_key`.
local function decide_all(takes, operation, now, at, calendar, id)
    local holds = operation == 'hold' and with_holds()
    local keys, allowed = {}, true
    for i, take in ipairs(takes) do
        local cost, limits, changed = take.cost, nil, nil
        local bytes, failed = get(take.key)
        if failed then
            return failed
        end
        limits, changed = read_key(take.key, bytes, take.policy, now, calendar)
        if not limits then
            return changed
        end
        -- A key in which the hold is open is allowed without a change.
        if holds and holds.is_open(limits, id) then
            cost = 0
        end
        allowed = allowed and (cost == 0 or longest_wait(limits, now, cost) == 0)
        keys[i] = { limits = limits, cost = cost, bytes = bytes, changed = changed }
    end
    for i = 1, holds and allowed and #keys or 0 do
        local failed = keys[i].cost > 0 and holds.full(keys[i].limits)
        if failed then
            return failed
        end
    end

    local reply = {}
    for i, key in ipairs(keys) do
        local name, limits, cost, delay, untouched, failed = takes[i].key, key.limits, key.cost, 0, true, nil
        if cost > 0 then
            if allowed then
                delay = longest_delay(limits, now)
            end
            if operation == 'take' and allowed then
                charge(limits, now, cost)
            elseif holds and allowed then
                holds.open(limits, id, cost, now + takes[i].ttl)
            end
            if operation ~= 'peek' and allowed then
                failed, untouched = store(name, limits, now, at, key.bytes), false
            elseif operation ~= 'peek' then
                local noted
                noted, failed = record_denial(name, limits, now, at, key.bytes, key.changed, cost)
                untouched = not noted
            end
            if failed then
                return failed
            end
        end
        if untouched and operation ~= 'peek' and key.bytes then
            heal(name, limits, now, at)
        end
        local wait, binding = 0, nil
        if not allowed and cost > 0 then
            wait, binding = longest_wait(limits, now, cost)
        end
        local integers = wait == 0 and decision(limits, now, 1, 0, delay) or decision(limits, now, 0, wait, 0, binding)
        for j = 1, 7 do
            reply[#reply + 1] = integers[j]
        end
    end
    return reply
end
