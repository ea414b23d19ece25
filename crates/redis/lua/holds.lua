-- The open holds of a key: the body of a function, since few keys have any.
--
-- A ledger is a table: the holds as the bytes that are stored (`records`, docs/state-format.md), in the order in which
-- they were opened, and what they add up to: `count`, the units of all (`held`) and of the metered ones (`metered`), and
-- when the first and the last expire (`first`, `last`).

local holds = {}

local MAX_HOLDS, HEAD = 65536, 12

-- The hold at `at` of `records`: when it expires, its units, whether it is metered, and the place behind it.
local function hold_at(records, at)
    local head, units, expires = unpack('<BI4I7', records, at)
    return expires, units, head >= 128, at + HEAD + head % 128
end

-- The ledger of these records.
local function count_holds(records)
    local ledger = { records = records, count = 0, held = 0, metered = 0, first = math.huge, last = 0 }
    local at = 1
    while at <= #records do
        local expires, units, metered
        expires, units, metered, at = hold_at(records, at)
        ledger.count, ledger.held = ledger.count + 1, ledger.held + units
        ledger.metered = ledger.metered + (metered and units or 0)
        ledger.first, ledger.last = math.min(ledger.first, expires), math.max(ledger.last, expires)
    end
    return ledger
end

-- Puts other records in the place of those of a ledger.
local function set_records(ledger, records)
    for name, value in pairs(count_holds(records)) do
        ledger[name] = value
    end
end

-- The ledger that stands in `bytes` at `at`, to the end.
function holds.read(bytes, at)
    if #bytes < at + 3 then
        return nil, EARLY
    end
    local count, start = unpack('<I4', bytes, at), at + 4
    if count < 1 or count > MAX_HOLDS then
        return nil, 'its number of holds is not 1 to 65536'
    end
    at = start
    for _ = 1, count do
        if #bytes < at + HEAD - 1 then
            return nil, EARLY
        end
        local length = byte(bytes, at) % 128
        local expires, units, _, next = hold_at(bytes, at)
        if #bytes < next - 1 then
            return nil, EARLY
        elseif length < 1 or length > 64 or units < 1 or expires > MAX_TIME then
            return nil, 'a hold has a value outside its domain'
        end
        at = next
    end
    if at <= #bytes then
        return nil, 'it goes on after its end'
    end
    return count_holds(sub(bytes, start))
end

function holds.save(ledger)
    return pack('<I4', ledger.count) .. ledger.records
end

-- Where the hold of that id begins, its units, whether it is metered, and the place behind it; nothing if none is open.
local function find(ledger, id)
    local records = ledger and ledger.records or ''
    if not string.find(records, id, 1, true) then
        return nil
    end
    local at = 1
    while at <= #records do
        local _, units, metered, next = hold_at(records, at)
        if next - at - HEAD == #id and sub(records, at + HEAD, next - 1) == id then
            return at, units, metered, next
        end
        at = next
    end
end

-- Pairs of a time and units in the order of the times; of equals, the first stays the first.
local function sort_by_time(list)
    for i = 2, #list do
        if list[i][1] < list[i - 1][1] then
            for j = 1, #list do
                list[j][3] = j
            end
            table.sort(list, function(a, b)
                return a[1] < b[1] or (a[1] == b[1] and a[3] < b[3])
            end)
            return list
        end
    end
    return list
end

-- When the holds expire that a limit counts, and their units, in that order.
local function by_expiry(ledger, only_metered)
    local list, at = {}, 1
    while at <= #ledger.records do
        local expires, units, metered
        expires, units, metered, at = hold_at(ledger.records, at)
        if metered or not only_metered then
            list[#list + 1] = { expires, units }
        end
    end
    return sort_by_time(list)
end

-- Charges a hold that expired at `time`. A window of the calendar that was over before the last one is of no account.
local function charge_expired(limit, time, units)
    local first, next = limit.first, limit.next
    if first and time < first then
        limit.first, limit.next = limit.calendars(limit.calendar, time)
    end
    if limit.first or not first then
        limit.kind.charge(limit, time, units)
    end
    limit.first, limit.next = first, next
end

-- Charges a hold that will expire at `time` to a copy of a limit, which then is at that time.
local function charge_later(limit, time, units)
    while limit.next and time >= limit.next do
        -- Only after the clock stepped back does a hold expire behind the next window; its length is then guessed.
        limit.first, limit.next, limit.after = limit.next, limit.after, 2 * limit.after - limit.next
    end
    limit.plain.charge(limit, time, units)
end

-- Takes the holds that have expired off the ledger, and charges the metered ones to `limits`, each at its time.
function holds.expire(limits, ledger, now)
    local open, expired, at = {}, {}, 1
    local records = ledger.records
    while at <= #records do
        local expires, units, metered, next = hold_at(records, at)
        if expires > now then
            open[#open + 1] = sub(records, at, next - 1)
        elseif metered then
            expired[#expired + 1] = { expires, units }
        end
        at = next
    end
    set_records(ledger, table.concat(open))
    for _, hold in ipairs(sort_by_time(expired)) do
        for i = 1, #limits do
            charge_expired(limits[i], hold[1], hold[2])
        end
    end
end

-- A copy of a limit, whose state can be changed.
local function fork(limit)
    local copy = {}
    for name, value in pairs(limit) do
        copy[name] = value
    end
    return copy
end

-- When a limit has so many units free, if nothing but time passes; nothing if it never has.
local function free_at(limit, at, units)
    return units <= limit.capacity and at + limit.plain.wait(limit, at, units) or nil
end

-- As time passes and nothing else comes, what a limit has free never shrinks, because an expiry moves held units into
-- use. So a binary search finds the first expiry after which a request passes.
local function wait(limit, now, cost)
    local ledger = limit.ledger
    local held = limit.counts_holds and ledger.held or ledger.metered
    local needed = limit.borrow and 1 or cost
    if held == 0 then
        return limit.plain.wait(limit, now, cost)
    elseif needed > limit.capacity then
        return NEVER
    end
    -- After the first `done` expiries, at `since`, the request does not pass; after the first `last`, it does, or they
    -- are all.
    local state, since = fork(limit), now
    state.borrow = false
    if free_at(state, since, needed + held) == since then
        return 0
    end
    local list = by_expiry(ledger, not limit.counts_holds)
    local done, last = 0, #list
    while last - done > 1 do
        local middle = math.floor((done + last) / 2)
        local later, left = fork(state), held
        for i = done + 1, middle do
            charge_later(later, list[i][1], list[i][2])
            left = left - list[i][2]
        end
        local time = list[middle][1]
        if free_at(later, time, needed + left) == time then
            last = middle
        else
            state, since, held, done = later, time, left, middle
        end
    end
    -- It passes before the next expiry, at it, or, after the last, when what is then in use has drained.
    local next = list[last]
    local time = free_at(state, since, needed + held)
    if not time or time >= next[1] then
        charge_later(state, next[1], next[2])
        time = free_at(state, next[1], needed + held - next[2])
    end
    return time - now
end

-- Microseconds until the limit is drained (`drain`) and no hold is open.
local function drained(limit, now, drain)
    local ledger = limit.ledger
    local open = math.max(0, ledger.last - now)
    if limit.counts_holds or ledger.metered == 0 then
        return math.max(open, limit.plain[drain](limit, now))
    end
    local state, time = fork(limit), now
    for _, hold in ipairs(by_expiry(ledger, true)) do
        time = hold[1]
        charge_later(state, time, hold[2])
    end
    return math.max(open, time - now + state.plain[drain](state, time))
end

-- What a limit does with a ledger: it looks ahead.
local held_kind = {
    wait = wait,

    remaining = function(limit, now)
        local held = limit.counts_holds and limit.ledger.held or limit.ledger.metered
        return math.max(0, limit.plain.remaining(limit, now) - held)
    end,

    used = function(limit, now)
        return limit.plain.used(limit, now) + (limit.counts_holds and limit.ledger.held or limit.ledger.metered)
    end,

    reset_after = function(limit, now)
        return drained(limit, now, 'reset_after')
    end,

    lifetime = function(limit, now)
        return drained(limit, now, 'lifetime')
    end,
}

-- Lets limits see a ledger.
function holds.attach(limits, ledger)
    limits.ledger = ledger
    for i = 1, #limits do
        local plain = limits[i].kind
        limits[i].plain, limits[i].ledger = plain, ledger
        limits[i].kind = setmetatable({}, {
            __index = function(_, name)
                return held_kind[name] or plain[name]
            end,
        })
    end
end

-- Whether a hold of that id is open.
function holds.is_open(limits, id)
    return find(limits.ledger, id) ~= nil
end

-- The error where one more hold cannot be opened.
function holds.full(limits)
    if limits.ledger and limits.ledger.count >= MAX_HOLDS then
        return { err = 'ERR too many open holds of the key: expected at most 65536' }
    end
end

-- Adds a hold to the ledger.
function holds.open(limits, id, units, expires)
    if not limits.ledger then
        holds.attach(limits, count_holds(''))
    end
    local metered = false
    for i = 1, #limits do
        metered = metered or not limits[i].counts_holds
    end
    local ledger = limits.ledger
    set_records(ledger, ledger.records .. pack('<BI4I7', #id + (metered and 128 or 0), units, expires) .. id)
end

-- A settle or renew, as `operate` in decide.lua.
function holds.operate(key, limits, now, at, existed, operation, id, used, ttl)
    local ledger = limits.ledger
    local place, units, metered, next = find(ledger, id)
    if not place then
        return tell(limits, now, 0, NEVER, 0), true
    end
    local before, behind = sub(ledger.records, 1, place - 1), sub(ledger.records, next)
    if operation == 'renew' then
        local head, name = sub(ledger.records, place, place + 4), sub(ledger.records, place + HEAD, next - 1)
        set_records(ledger, before .. head .. pack('<I7', now + ttl) .. name .. behind)
    else
        set_records(ledger, before .. behind)
        if metered and (used or units) > 0 then
            charge(limits.kept or limits, now, used or units)
        end
    end
    return store(key, limits, now, at, existed) or tell(limits, now, 1, 0, 0)
end

return holds
