-- The operations, over all limits of a policy at once: all or nothing.

-- Bytes in the form of error texts: printable ASCII, long values cut, as in `crates/commands`.
local function shown(bytes)
    local text = string.gsub(sub(bytes, 1, 40), '.', function(one)
        local code = byte(one)
        if one == '\t' or one == '\r' or one == '\n' then
            return one == '\t' and '\\t' or one == '\r' and '\\r' or '\\n'
        elseif one == '\\' then
            return '\\\\'
        elseif code < 32 or code > 126 then
            return string.format('\\x%02x', code)
        end
    end)
    return #bytes > 40 and text .. '...' or text
end

local function say_holds(key, what)
    return { err = 'SGSTATE key `' .. shown(key) .. '` holds ' .. what }
end

local function damaged_error(key, what)
    return say_holds(key, what == FOREIGN and FOREIGN or 'damaged state: ' .. what)
end

local function version_error(key, version)
    return say_holds(key, 'state of version ' .. version .. ', and this version of Sluicegate reads up to 4; '
        .. 'upgrade Sluicegate')
end

local function cell_error(key)
    return say_holds(key, 'state of redis-cell; use a policy with a limit of the gcra family to take it over')
end

-- Parses a value of redis-cell: the arrival time as decimal nanoseconds since the Unix epoch. Returns whole
-- microseconds and the rest; nothing for other bytes. States of Sluicegate begin with a version, which is not a
-- digit.
local function cell_time(bytes)
    if #bytes > 0 and #bytes <= 20 and not string.find(bytes, '[^0-9]')
        and (#bytes < 20 or bytes <= '18446744073709551615') then
        return tonumber('0' .. sub(bytes, 1, -4)), tonumber(sub(bytes, -3))
    end
end

-- The first of the unused `limits` that is of the gcra family, with a debt until that time; nothing if none is.
local function cell_limit(limits, now, tat, rest)
    for i = 1, #limits do
        local limit = limits[i]
        if limit.kind.owe then
            if tat >= now then
                limit.kind.owe(limit, now, tat - now, math.ceil(rest * limit.n / 1000))
            end
            return limit
        end
    end
end

-- The error of a GET: the server's, or a text of Sluicegate if the key is of another type.
local function say_type(key, failed)
    if string.find(failed.err, 'WRONGTYPE', 1, true) then
        return { err = 'WRONGTYPE key `' .. shown(key) .. '` does not hold a string, so Sluicegate did not write it' }
    end
    return failed
end

-- The longest wait over all limits for `cost`, and the first limit that has it.
local function longest_wait(limits, now, cost)
    local longest, binding = -1, 1
    for i = 1, #limits do
        local wait = limits[i].kind.wait(limits[i], now, cost)
        if wait > longest then
            longest, binding = wait, i
        end
    end
    return longest, binding
end

local function delay_of(limit, now)
    return limit.queue and limit.kind.delay(limit, now) or 0
end

local function longest_delay(limits, now)
    local longest = 0
    for i = 1, #limits do
        longest = math.max(longest, delay_of(limits[i], now))
    end
    return longest
end

-- The seven integers, with the current state of the key. The binding limit is the first one with the least remaining,
-- unless `binding` overrides it.
local function decision(limits, now, allowed, retry, delay, binding)
    local remaining, least, reset = math.huge, 1, 0
    for i = 1, #limits do
        local limit = limits[i]
        local left = limit.kind.remaining(limit, now)
        if left < remaining then
            remaining, least = left, i
        end
        reset = math.max(reset, limit.kind.reset_after(limit, now))
    end
    binding = binding or least
    if retry == NEVER then
        retry = -1
    end
    return { allowed, limits[binding].capacity, remaining, retry, reset, delay, binding - 1 }
end

-- Microseconds as a time to live: whole milliseconds, rounded up, in plain digits.
local function milliseconds(micros)
    return string.format('%d', math.ceil(micros / 1000))
end

-- The time to live of the key: two arguments of SET. The time of a test differs from the server's, therefore its keys
-- live for an hour at least.
local function lifetime(limits, now, at)
    local longest = 1
    limits = limits.kept or limits
    for i = 1, #limits do
        longest = math.max(longest, limits[i].kind.lifetime(limits[i], now))
    end
    if at then
        return 'PX', milliseconds(math.max(longest, 3600000000))
    end
    return 'PXAT', milliseconds(now + longest)
end

-- Stores the current state of the key. Returns the server's error, if there is one.
local function store(key, limits, now, at, existed)
    local kept, ledger = limits.kept or limits, limits.ledger
    local version, parts, used = '\2', {}, false
    for i = 1, #kept do
        local limit = kept[i]
        parts[i + 1] = limit.kind.save(limit)
        used = used or not limit.kind.unused(limit)
        version = limit.counts_holds and '\4' or version
    end
    if ledger and ledger.count > 0 then
        version, used, parts[#kept + 2] = '\4', true, with_holds().save(ledger)
    end
    parts[1] = version .. string.char(#kept)
    local done
    if used then
        done = redis.pcall('SET', key, table.concat(parts), lifetime(limits, now, at))
    elseif existed then
        done = redis.pcall('DEL', key)
    end
    return type(done) == 'table' and done.err and done
end

-- Sets the time to live of a key that has lost it and was not stored.
local function heal(key, limits, now, at)
    if redis.pcall('PTTL', key) == -1 then
        local unit, span = lifetime(limits, now, at)
        redis.pcall(unit == 'PX' and 'PEXPIRE' or 'PEXPIREAT', key, span)
    end
end

local function charge(limits, now, cost)
    for i = 1, #limits do
        limits[i].kind.charge(limits[i], now, cost)
    end
end

-- Records a denied request where that counts, and stores a migrated state. Returns whether there was anything to
-- store, and the server's error.
local function record_denial(key, limits, now, at, existed, changed, cost)
    local records = changed
    for i = 1, #limits do
        if limits[i].count_all then
            records = true
            limits[i].kind.charge(limits[i], now, cost)
        end
    end
    return records, records and store(key, limits, now, at, existed)
end

-- Denies a request for which `wait` is too long: records it where that counts, and stores a migrated state. Returns
-- the reply, and whether nothing was stored.
local function deny(key, limits, now, at, existed, changed, cost, wait, binding)
    local noted, failed = record_denial(key, limits, now, at, existed, changed, cost)
    if failed then
        return failed
    elseif noted then
        wait, binding = longest_wait(limits, now, cost)
    end
    return decision(limits, now, 0, wait, 0, binding), not noted
end

local function reserve(key, limits, now, at, existed, changed, cost, max_wait)
    -- The wait of each limit: until it would pass and, in a queue, until the requests before it have gone. For a
    -- denial, the excess over the permitted wait.
    local needed, beyond, binding = 0, -1, 1
    for i = 1, #limits do
        local limit, need = limits[i], NEVER
        if cost <= limit.capacity then
            need = math.max(limit.kind.wait(limit, now, cost), delay_of(limit, now))
        end
        needed = math.max(needed, need)
        -- A queue with open holds looks ahead (holds.lua).
        local ahead = limit.kind.reserve_wait
        local over = ahead and ahead(limit, now, cost, max_wait) or math.max(0, need - max_wait)
        if over > beyond then
            beyond, binding = over, i
        end
    end
    if needed > max_wait then
        local noted, failed = record_denial(key, limits, now, at, existed, changed, cost)
        return failed or decision(limits, now, 0, beyond, 0, binding), not noted
    end
    charge(limits, now, cost)
    local failed = store(key, limits, now, at, existed)
    return failed or decision(limits, now, 1, 0, needed)
end

-- The reply to `operation` under limits that have the key's state; and whether nothing was stored. `changed`: the
-- state was written under another policy.
local function operate(key, limits, now, at, existed, changed, operation, cost, max_wait, id)
    local holds = id and with_holds()
    if operation == 'settle' or operation == 'renew' then
        return holds.operate(key, limits, now, at, existed, operation, id, cost, max_wait)
    elseif cost == 0 or operation == 'reset' or (holds and holds.is_open(limits, id)) then
        return decision(limits, now, 1, 0, 0), true
    elseif operation == 'reserve' then
        return reserve(key, limits, now, at, existed, changed, cost, max_wait)
    elseif operation == 'charge' or operation == 'refund' then
        for i = 1, #limits do
            limits[i].kind[operation](limits[i], now, cost)
        end
        return store(key, limits, now, at, existed) or decision(limits, now, 1, 0, 0)
    end

    local wait, binding = longest_wait(limits, now, cost)
    if wait > 0 then
        if operation == 'peek' then
            return decision(limits, now, 0, wait, 0, binding), true
        end
        return deny(key, limits, now, at, existed, changed, cost, wait, binding)
    end
    local delay, failed = longest_delay(limits, now), nil
    if operation == 'take' then
        charge(limits, now, cost)
    elseif operation == 'hold' then
        failed = holds.full(limits)
        if not failed then
            holds.open(limits, id, cost, now + max_wait)
        end
    end
    if operation ~= 'peek' then
        failed = failed or store(key, limits, now, at, existed)
    end
    return failed or decision(limits, now, 1, 0, delay), operation == 'peek'
end

-- The value of a key: its bytes, or false. Or nothing, and the server's error.
local function get(key)
    local bytes = redis.pcall('GET', key)
    if type(bytes) == 'table' then
        return nil, say_type(key, bytes)
    end
    return bytes
end

-- Whether all limits count holds.
local function only_concurrency(limits)
    for i = 1, #limits do
        if not limits[i].counts_holds then
            return false
        end
    end
    return true
end

local function none_used(limits)
    for i = 1, #limits do
        if not limits[i].kind.unused(limits[i]) then
            return false
        end
    end
    return true
end

-- Reads the open holds behind the limits of a key (`limits.open`), and charges those that have expired. Returns
-- whether there were any, and the fault in them; nil if the calendar of a limit is needed first.
local function read_holds(limits, bytes, now, find_window)
    local ledger, fault = with_holds().read(bytes, limits.rest)
    if fault then
        return false, fault
    end
    for i = 1, #limits do
        if limits[i].calendar and not find_window(limits[i]) then
            return nil
        end
    end
    local expires = ledger.first <= now
    if expires then
        with_holds().expire(limits, ledger, now)
    end
    limits.open = ledger.count > 0 and ledger or nil
    return expires
end

-- The limits of `policy` (the byte form of an unused key), with the state in `bytes` of `key`, and whether that was
-- written under another policy. Or nothing, and the reply. `calendar(name, now)` returns the window of a calendar
-- around now, or nothing if the client did not send it: the reply is then the time and the names of all calendars
-- that may be needed.
local function read_key(key, bytes, policy, now, calendar)
    local function find_window(limit)
        if not limit.next then
            limit.calendars, limit.first, limit.next, limit.after = calendar, calendar(limit.calendar, now)
        end
        return limit.next
    end
    local function request_calendars(...)
        local reply = { now }
        for _, limits in ipairs({ ... }) do
            for i = 1, #limits do
                reply[#reply + 1] = limits[i].calendar
            end
        end
        return nil, reply
    end
    -- The limits of the policy, unused; and whether the windows of their calendars are available.
    local function fresh()
        local limits, fault = read_all(policy)
        local known = true
        for i = 1, limits and #limits or 0 do
            known = known and (not limits[i].calendar or find_window(limits[i]))
        end
        return limits, fault, known
    end

    local limits, fault, known = fresh()
    if not limits then
        return nil, damaged_error(key, fault)
    elseif not known then
        return request_calendars(limits)
    end
    local changed = false
    local tat, rest = cell_time(bytes or '')
    if tat then
        local old = cell_limit(fresh(), now, tat, rest)
        if not old then
            return nil, cell_error(key)
        end
        changed = migrate_state({ old }, limits, now, find_window)
    elseif bytes then
        local version
        fault, version = read_fault(bytes)
        if version then
            return nil, version_error(key, version)
        elseif fault then
            return nil, damaged_error(key, fault)
        end
        local same, old
        same, fault = load_same(limits, bytes)
        if not same then
            limits = fresh()
            old, fault = read_all(bytes)
        end
        local stored = old or limits
        if not fault and stored.rest then
            changed, fault = read_holds(stored, bytes, now, find_window)
            if changed == nil then
                return request_calendars(limits, stored)
            end
        end
        if fault then
            return nil, damaged_error(key, fault)
        elseif changed and not stored.open and none_used(stored) then
            -- The state of the key is empty.
            limits = old and limits or fresh()
        elseif old and only_concurrency(limits) and not only_concurrency(old) then
            limits.kept = old
        elseif old then
            local migrated, unknown = migrate_state(old, limits, now, find_window)
            if unknown then
                return request_calendars(limits, old)
            end
            changed = changed or migrated
        end
        if stored.open then
            with_holds().attach(limits, stored.open)
        end
    end
    return limits, changed
end

-- One operation on one key; the reply.
-- `id` is that of a hold; `max_wait` is then its lifetime.
local function decide(key, operation, cost, max_wait, policy, now, at, calendar, id)
    local bytes, failed = get(key)
    if failed then
        return failed
    elseif operation == 'reset' and bytes then
        local foreign = read_fault(bytes) == FOREIGN and not cell_time(bytes)
        local done = foreign and damaged_error(key, FOREIGN) or redis.pcall('DEL', key)
        if type(done) == 'table' then
            return done
        end
        bytes = false
    end
    local limits, changed = read_key(key, bytes, policy, now, calendar)
    if not limits then
        return changed
    end
    local reply, untouched =
        operate(key, limits, now, at, bytes, changed, operation, cost, max_wait, id)
    if untouched and bytes and operation ~= 'peek' then
        heal(key, limits, now, at)
    end
    return reply
end
