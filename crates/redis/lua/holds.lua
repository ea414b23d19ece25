-- The open holds of a key: the body of a function, since few keys have any.
--
-- A ledger is a table: the holds as the bytes that are stored (`records`, docs/state-format.md), in the order in which
-- they expire; of each, the place behind its record (`ends`), its units, when it expires (`times`), whether it is
-- metered (`metered`) and its number in the order of opening (`numbers`); what they add up to: the units of all (`held`)
-- and of the metered ones (`in_use`), and when the first and the last expire (`first`, `last`); and the number of the next
-- one (`next`).

local holds = {}

local MAX_HOLDS, HEAD = 65536, 18
-- The same for a script, which reads all of them and would take longer than the deadline of a request. A key may have more
-- from the module.
local MAX_OPENED = 4096

-- A list with space for some values, so that it need not grow one by one.
local function list()
    return { nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
end

local function new_ledger()
    return {
        records = '', ends = list(), units = list(), times = list(), metered = list(), numbers = list(), count = 0,
        held = 0, in_use = 0, first = math.huge, last = 0, next = 0,
    }
end

-- Sets what follows from the expiry times of the holds.
local function count_times(ledger)
    ledger.first, ledger.last = ledger.times[1] or math.huge, ledger.times[ledger.count] or 0
    ledger.by_expiry = nil
end

-- Removes a hold from the ledger.
local function remove(ledger, index)
    local records, ends = ledger.records, ledger.ends
    local place, next = index > 1 and ends[index - 1] or 1, ends[index]
    ledger.records = sub(records, 1, place - 1) .. sub(records, next)
    ledger.count, ledger.held = ledger.count - 1, ledger.held - ledger.units[index]
    if ledger.metered[index] then
        ledger.in_use = ledger.in_use - ledger.units[index]
    end
    for _, list in ipairs({ ends, ledger.units, ledger.times, ledger.metered, ledger.numbers }) do
        table.remove(list, index)
    end
    for i = index, ledger.count do
        ends[i] = ends[i] - (next - place)
    end
    count_times(ledger)
end

-- Adds a hold to the ledger, behind those that expire before it, or at the same time and were opened before it.
local function add(ledger, id, units, expires, metered, number)
    local index, behind = 1, ledger.count + 1
    while index < behind do
        local middle = math.floor((index + behind) / 2)
        local time = ledger.times[middle]
        if time < expires or time == expires and ledger.numbers[middle] < number then
            index = middle + 1
        else
            behind = middle
        end
    end
    local records, ends = ledger.records, ledger.ends
    local record = pack('<BI4I7I6', #id + (metered and 128 or 0), units, expires, number) .. id
    local place = index > 1 and ends[index - 1] or 1
    ledger.records = sub(records, 1, place - 1) .. record .. sub(records, place)
    table.insert(ends, index, place + #record)
    table.insert(ledger.units, index, units)
    table.insert(ledger.times, index, expires)
    table.insert(ledger.metered, index, metered)
    table.insert(ledger.numbers, index, number)
    ledger.count, ledger.held = ledger.count + 1, ledger.held + units
    ledger.in_use = metered and ledger.in_use + units or ledger.in_use
    for i = index + 1, ledger.count do
        ends[i] = ends[i] + #record
    end
    count_times(ledger)
end

-- The ledger in `bytes` from `start` to the end.
function holds.read(bytes, start)
    if #bytes < start + 9 then
        return nil, EARLY
    end
    local count, next, at = unpack('<I4I6', bytes, start)
    if count < 1 or count > MAX_HOLDS then
        return nil, 'its number of holds is not 1 to 65536'
    end
    local ledger, before = new_ledger(), at - 1
    local ends, all_units, times, all_metered = ledger.ends, ledger.units, ledger.times, ledger.metered
    local numbers, held, in_use, last, latest = ledger.numbers, 0, 0, 0, -1
    for i = 1, count do
        if #bytes < at + HEAD - 1 then
            return nil, EARLY
        end
        local head, units, time, number = unpack('<BI4I7I6', bytes, at)
        local length, metered = head % 128, head >= 128
        at = at + HEAD + length
        if #bytes < at - 1 then
            return nil, EARLY
        elseif length < 1 or length > 64 or units < 1 or time > MAX_TIME or number >= next then
            return nil, 'a hold has a value outside its domain'
        elseif time < last or time == last and number <= latest then
            return nil, 'its holds are not in the order of their expiry'
        end
        ends[i], all_units[i], times[i], all_metered[i], numbers[i] = at - before, units, time, metered, number
        held, in_use, last, latest = held + units, metered and in_use + units or in_use, time, number
    end
    if at <= #bytes then
        return nil, 'it goes on after its end'
    end
    ledger.count, ledger.held, ledger.in_use = count, held, in_use
    ledger.first, ledger.last, ledger.next = times[1], last, next
    ledger.records = sub(bytes, before + 1)
    return ledger
end

function holds.save(ledger)
    return pack('<I4I6', ledger.count, ledger.next) .. ledger.records
end

-- The index of the hold of that id; nothing if none is open.
local function find(ledger, id)
    local records = ledger and ledger.records or ''
    if not string.find(records, id, 1, true) then
        return nil
    end
    local at = 1
    for i = 1, ledger.count do
        local next = ledger.ends[i]
        if next - at - HEAD == #id and sub(records, at + HEAD, next - 1) == id then
            return i
        end
        at = next
    end
end

-- The indexes of the holds that a limit counts, in the order in which they expire. Cached, because each limit needs them.
local function by_expiry(ledger, only_metered)
    ledger.by_expiry = ledger.by_expiry or {}
    local indexes, metered = ledger.by_expiry[only_metered], ledger.metered
    if not indexes then
        indexes = {}
        for i = 1, ledger.count do
            if metered[i] or not only_metered then
                indexes[#indexes + 1] = i
            end
        end
        ledger.by_expiry[only_metered] = indexes
    end
    return indexes
end

-- Charges holds that expired. A window of the calendar that was over before the last one has no effect.
local function charge_each_expired(limit, times, units)
    local first, next = limit.first, limit.next
    for i = 1, #times do
        if first and times[i] < first then
            limit.first, limit.next = limit.calendars(limit.calendar, times[i])
        end
        if limit.first or not first then
            limit.kind.charge(limit, times[i], units[i])
        end
        limit.first, limit.next = first, next
    end
end

-- Charges a hold that will expire at `time` to a copy of a limit, which then is at that time.
local function charge_later(limit, time, units)
    while limit.next and time >= limit.next do
        -- A hold of 24 hours expires behind the next window only if that is a day of less than 24 hours; the one behind it
        -- has 24. After the clock stepped back it may be any other window, whose length is guessed.
        limit.first, limit.next, limit.after =
            limit.next, limit.after, limit.after + math.max(limit.after - limit.next, 86400000000)
    end
    limit.plain.charge(limit, time, units)
end

-- Removes the holds that have expired from the ledger, and charges the metered ones to `limits`, each at its time.
function holds.expire(limits, ledger, now)
    local expired, times, units = 0, {}, {}
    while expired < ledger.count and ledger.times[expired + 1] <= now do
        expired = expired + 1
        if ledger.metered[expired] then
            times[#times + 1], units[#units + 1] = ledger.times[expired], ledger.units[expired]
        end
    end
    for i = 1, #times > 0 and #limits or 0 do
        local charge_all = limits[i].kind.charge_all or charge_each_expired
        charge_all(limits[i], times, units)
    end
    local open = ledger.count - expired
    local records = expired > 0 and sub(ledger.records, ledger.ends[expired]) or ledger.records
    local left = open > 0 and holds.read(pack('<I4I6', open, ledger.next) .. records, 1) or new_ledger()
    for name, value in pairs(left) do
        ledger[name] = value
    end
end

-- A copy of a limit, whose state can be changed.
local function copy_of(limit)
    local copy = {}
    for name, value in pairs(limit) do
        copy[name] = value
    end
    return copy
end

-- A copy of a limit to look ahead with: after the clock was set back, later times are taken as now, also later on.
local function fork(limit, now)
    local copy = copy_of(limit)
    limit.plain.refund(copy, now, 0)
    return copy
end

-- When a limit has `units` free, if only time passes; nothing if it never has.
local function free_at(limit, at, units)
    return units <= limit.capacity and at + limit.plain.wait(limit, at, units) or nil
end

-- As time passes without requests, the free units of a limit never shrink, because an expiry moves held units into
-- use. Therefore a binary search finds the first expiry after which a request passes.
local function wait(limit, now, cost)
    local ledger = limit.ledger
    local held = limit.counts_holds and ledger.held or ledger.in_use
    local needed = limit.borrow and 1 or cost
    if held == 0 then
        return limit.plain.wait(limit, now, cost)
    elseif needed > limit.capacity then
        return NEVER
    end
    if not limit.borrow and free_at(limit, now, needed + held) == now then
        return 0
    end
    local wait_beside = limit.plain.wait_beside
    if wait_beside then
        return wait_beside(limit, now, cost, held, ledger, by_expiry)
    end
    -- After the first `done` expiries, at `since`, the request does not pass; after the first `last`, it does, or
    -- `last` is all of them.
    local state, since = fork(limit, now), now
    state.borrow = false
    if free_at(state, since, needed + held) == since then
        return 0
    end
    local list, times, units = by_expiry(ledger, not limit.counts_holds), ledger.times, ledger.units
    local done, last = 0, #list
    while last - done > 1 do
        local middle = math.floor((done + last) / 2)
        local later, left = copy_of(state), held
        for i = done + 1, middle do
            charge_later(later, times[list[i]], units[list[i]])
            left = left - units[list[i]]
        end
        local time = times[list[middle]]
        if free_at(later, time, needed + left) == time then
            last = middle
        else
            state, since, held, done = later, time, left, middle
        end
    end
    -- It passes before the next expiry, at it, or, after the last, when the units then in use have drained.
    local next = list[last]
    local time = free_at(state, since, needed + held)
    if not time or time >= times[next] then
        charge_later(state, times[next], units[next])
        time = free_at(state, times[next], needed + held - units[next])
    end
    return time - now
end

-- Microseconds until a reserve of a queue passes that waits for up to `max_wait`. A hold that expires departs before those
-- that come later, and makes their delay longer.
local function reserve_wait(limit, now, cost, max_wait)
    if cost > limit.capacity then
        return NEVER
    end
    local early = now + wait(limit, now, cost) - max_wait
    local ledger, state, since = limit.ledger, fork(limit, now), now
    local function passes()
        return math.max(since, early, since + limit.plain.delay(state, since) - max_wait)
    end
    for _, index in ipairs(by_expiry(ledger, true)) do
        if passes() < ledger.times[index] then
            break
        end
        since = ledger.times[index]
        charge_later(state, since, ledger.units[index])
    end
    return passes() - now
end

-- Microseconds until the limit is drained (`drain`) and no hold is open. The state after the last expiry is cached,
-- because both the lifetime and the reply need it. They differ after the clock was set back: the times of a state that is
-- stored stay later than now.
local function drained(limit, now, drain)
    local ledger = limit.ledger
    local open = math.max(0, ledger.last - now)
    if limit.counts_holds or ledger.in_use == 0 then
        return math.max(open, limit.plain[drain](limit, now))
    end
    if limit.drained_after == nil then
        local after = limit.plain.drained_after
        limit.drained_after = after and after(limit, now, ledger) or false
    end
    if limit.drained_after then
        -- What a log keeps longer than its period is stored as long.
        local kept = drain == 'lifetime' and limit.retention and limit.retention - limit.period or 0
        return math.max(open, limit.drained_after + kept)
    end
    local is_kept = drain == 'lifetime' and limit.plain.latest ~= nil and limit.plain.latest(limit) > now
    local later = limit.later
    if is_kept or not later then
        later = is_kept and copy_of(limit) or fork(limit, now)
        later.time = now
        for _, index in ipairs(by_expiry(ledger, true)) do
            later.time = ledger.times[index]
            charge_later(later, later.time, ledger.units[index])
        end
        if not is_kept then
            limit.later = later
        end
    end
    return math.max(open, later.time - now + later.plain[drain](later, later.time))
end

-- The functions of a limit with a ledger: they look ahead.
local held_kind = {
    wait = wait,

    remaining = function(limit, now)
        local held = limit.counts_holds and limit.ledger.held or limit.ledger.in_use
        return math.max(0, limit.plain.remaining(limit, now) - held)
    end,

    used = function(limit, now)
        return limit.plain.used(limit, now) + (limit.counts_holds and limit.ledger.held or limit.ledger.in_use)
    end,

    reset_after = function(limit, now)
        return drained(limit, now, 'reset_after')
    end,

    lifetime = function(limit, now)
        return drained(limit, now, 'lifetime')
    end,
}

-- Attaches a ledger to limits, and to those that the key is stored with.
function holds.attach(limits, ledger)
    limits.ledger = ledger
    for i = 1, #limits do
        local limit = limits[i]
        limit.plain, limit.ledger = limit.kind, ledger
        limit.kind = setmetatable({
            wait = wait, remaining = held_kind.remaining, used = held_kind.used,
            reset_after = held_kind.reset_after, lifetime = held_kind.lifetime,
            reserve_wait = limit.queue and reserve_wait or nil,
        }, { __index = limit.plain })
    end
    if limits.kept then
        holds.attach(limits.kept, ledger)
    end
end

-- Whether a hold of that id is open.
function holds.is_open(limits, id)
    return find(limits.ledger, id) ~= nil
end

-- The error if one more hold cannot be opened.
function holds.full(limits)
    if limits.ledger and limits.ledger.count >= MAX_OPENED then
        return { err = 'ERR too many open holds of the key: expected at most ' .. MAX_OPENED }
    end
end

-- Adds a hold to the ledger.
function holds.open(limits, id, units, expires)
    if not limits.ledger then
        holds.attach(limits, new_ledger())
    end
    local metered = false
    for i = 1, #limits do
        metered = metered or not limits[i].counts_holds
    end
    local ledger = limits.ledger
    local number = ledger.count > 0 and ledger.next or 0
    ledger.next = number + 1
    add(ledger, id, units, expires, metered, number)
end

-- A settle or renew, as `operate` in decide.lua.
function holds.operate(key, limits, now, at, existed, operation, id, used, ttl)
    local ledger = limits.ledger
    local index = find(ledger, id)
    if not index then
        return decision(limits, now, 0, NEVER, 0), true
    end
    local units, metered, number = ledger.units[index], ledger.metered[index], ledger.numbers[index]
    remove(ledger, index)
    if operation == 'renew' then
        add(ledger, id, units, now + ttl, metered, number)
    elseif metered and (used or units) > 0 then
        charge(limits.kept or limits, now, used or units)
    end
    return store(key, limits, now, at, existed) or decision(limits, now, 1, 0, 0)
end

-- Made once in a run.
with_holds = function()
    return holds
end

return holds
