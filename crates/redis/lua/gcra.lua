-- gcra, token-bucket, leaky-bucket (the meter), leaky-queue: machines 1 to 4 of the byte form.
--
-- The state of a key is the theoretical arrival time (`tat`, in whole microseconds, and `part`, the rest in 1/n
-- microseconds). Spans have two numbers likewise, so that every product stays exact.

local gcra = {}

-- Bytes that hold any `part`, which is less than n.
local function gcra_width(n)
    return n == 1 and 0 or n <= 256 and 1 or n <= 65536 and 2 or n <= 16777216 and 3 or 4
end

-- The limit in `bytes` at `at`, without its state, and the position behind it.
function gcra.read(bytes, at, machine, flags)
    if #bytes < at + 14 then
        return nil, EARLY
    end
    local n, p, burst = unpack('<I4I6I4', bytes, at + 1)
    if n < 1 or burst < 1 or p < MIN_PERIOD or p > MAX_PERIOD then
        return nil, DOMAIN
    end
    local period, a, b = p, n, p
    while b > 0 do
        a, b = b, a % b
    end
    n, p = n / a, p / a
    local depth, depth_part = muldiv(burst, p, 0, n)
    if depth > MOST or (depth == MOST and depth_part > 0) then
        return nil, DOMAIN
    end
    return {
        kind = gcra, head = sub(bytes, at, at + 14), capacity = burst, period = period,
        n = n, p = p, width = gcra_width(n), depth = depth, depth_part = depth_part,
        borrow = flags == 16, queue = machine == 4, tat = 0, part = 0,
    }, at + 15
end

function gcra.load(limit, bytes, at)
    local width = limit.width
    if #bytes < at + 6 + width then
        return nil, EARLY
    end
    local tat, part = unpack('<I7', bytes, at), 0
    if width > 0 then
        part = unpack('<I' .. width, bytes, at + 7)
    end
    if tat > MAX_TIME then
        return nil, 'a time is out of bounds'
    elseif part >= limit.n then
        return nil, 'a part of a microsecond is out of bounds'
    end
    limit.tat, limit.part = tat, part
    return at + 7 + width
end

function gcra.save(limit)
    if limit.width == 0 then
        return limit.head .. pack('<I7', limit.tat)
    end
    return limit.head .. pack('<I7I' .. limit.width, limit.tat, limit.part)
end

function gcra.unused(limit)
    return limit.tat == 0 and limit.part == 0
end

-- The parameters that distinguish two limits, without names and defaults.
function gcra.rule(limit)
    return (limit.borrow and 'g+' or 'g') .. sub(limit.head, 2)
end

-- The time from now to the arrival time.
local function gcra_debt(limit, now)
    local whole = limit.tat - now
    if whole < 0 then
        return 0, 0
    end
    return whole, limit.part
end

-- Sets the debt of the key.
local function gcra_put(limit, now, whole, part)
    if whole == 0 and part == 0 then
        limit.tat, limit.part = 0, 0
    else
        limit.tat, limit.part = now + whole, part
    end
end

-- Sets the debt, at most the units that drain in 2^50 microseconds.
local function gcra_set(limit, now, whole, part)
    if part >= limit.n then
        whole, part = whole + 1, part - limit.n
    end
    if whole >= MOST then
        whole, part = MOST, 0
    end
    gcra_put(limit, now, whole, part)
end

-- For the migration of keys that another program has written.
gcra.owe = gcra_set

function gcra.wait(limit, now, cost)
    local needed = limit.borrow and 1 or cost
    if needed > limit.capacity then
        return NEVER
    end
    local whole, part = gcra_debt(limit, now)
    local more, more_part = muldiv(needed, limit.p, 0, limit.n)
    whole, part = whole + more - limit.depth, part + more_part - limit.depth_part
    if part < 0 then
        whole, part = whole - 1, part + limit.n
    elseif part >= limit.n then
        whole, part = whole + 1, part - limit.n
    end
    if whole < 0 then
        return 0
    end
    return part > 0 and whole + 1 or whole
end

function gcra.remaining(limit, now)
    local whole, part = gcra_debt(limit, now)
    whole, part = limit.depth - whole, limit.depth_part - part
    if part < 0 then
        whole, part = whole - 1, part + limit.n
    end
    if whole < 0 then
        return 0
    end
    return (muldiv(whole, limit.n, part, limit.p))
end

function gcra.reset_after(limit, now)
    local whole, part = gcra_debt(limit, now)
    return part > 0 and whole + 1 or whole
end

gcra.lifetime = gcra.reset_after

-- Microseconds until the debt is 0, if the only change is that the holds of `ledger` expire. Nothing if the sum in 1/n
-- microseconds could pass 2^50.
function gcra.drained_after(limit, now, ledger)
    local whole, part = gcra_debt(limit, now)
    local n, p = limit.n, limit.p
    if (math.max(whole, ledger.last - now) + 1) * n + ledger.in_use * p >= MOST then
        return nil
    end
    local owed, times, units, metered = whole * n + part, ledger.times, ledger.units, ledger.metered
    for i = 1, ledger.count do
        if metered[i] then
            local since = (times[i] - now) * n
            owed = (since > owed and since or owed) + units[i] * p
        end
    end
    local rest = owed % n
    return rest > 0 and (owed - rest) / n + 1 or owed / n
end

function gcra.delay(limit, now)
    return limit.queue and gcra.reset_after(limit, now) or 0
end

function gcra.used(limit, now)
    local whole, part = gcra_debt(limit, now)
    local units, rest = muldiv(whole, limit.n, part, limit.p)
    return math.min(rest > 0 and units + 1 or units, MOST)
end

function gcra.charge(limit, now, cost)
    local whole, part = gcra_debt(limit, now)
    local more, more_part = muldiv(cost, limit.p, 0, limit.n)
    gcra_set(limit, now, whole + more, part + more_part)
end

function gcra.refund(limit, now, cost)
    local whole, part = gcra_debt(limit, now)
    local less, less_part = muldiv(cost, limit.p, 0, limit.n)
    whole, part = whole - less, part - less_part
    if part < 0 then
        whole, part = whole - 1, part + limit.n
    end
    if whole < 0 then
        whole, part = 0, 0
    end
    gcra_put(limit, now, whole, part)
end

function gcra.with_used(limit, now, used)
    gcra_set(limit, now, muldiv(used, limit.p, 0, limit.n))
end

-- Migrates a state that was written under `old` to `limit`.
function gcra.migrate(limit, old, now)
    local whole, part = gcra_debt(old, now)
    if limit.n == old.n and limit.p == old.p then
        return gcra_put(limit, now, whole, part)
    end
    -- Whole units in use and the millionths beyond, rounded up; then the same in the new ticks.
    local units, ticks = muldiv(whole, old.n, part, old.p)
    local millionths, rest = muldiv(ticks, 1000000, 0, old.p)
    if rest > 0 then
        millionths = millionths + 1
    end
    if units >= MOST then
        units, millionths = MOST, 0
    end
    ticks, rest = muldiv(millionths, limit.p, 0, 1000000)
    if rest > 0 then
        ticks = ticks + 1
    end
    gcra_set(limit, now, muldiv(units, limit.p, ticks, limit.n))
end

kinds[1], kinds[2], kinds[3], kinds[4] = gcra, gcra, gcra, gcra

-- [library]

local GCRA_NAMES = { 'gcra', 'token-bucket', 'leaky-bucket', 'leaky-queue' }
local GCRA_SIZES = { 'burst', 'burst', 'capacity', 'capacity' }

-- Units, microseconds and flags of a bucket.
local function bucket_parts(limit)
    local burst = limit.options.burst and read_units('burst', limit.options.burst, 4294967295) or limit.count
    return burst, read_period('period', limit.period), limit.options.borrow and 16 or 0
end

algorithm({
    codes = { 1, 2, 3, 4 },
    names = {
        { 'gcra', { 'borrow', 'burst' } }, { 'token-bucket', { 'borrow', 'burst', 'refill' } },
        { 'leaky-bucket', { 'borrow', 'burst' } }, { 'leaky-queue', { 'burst' } },
    },

    parse = function(limit)
        if read_word(limit.options, 'refill', 'continuous', 'interval') then
            return algorithm_of[5].parse(limit)
        end
        local burst, period, flags = bucket_parts(limit)
        local drain, rest = muldiv(burst, period, 0, limit.count)
        check_drain(burst, drain < MOST or (drain == MOST and rest == 0))
        local code = contains(GCRA_NAMES, limit.name)
        return gcra.save(gcra.read(pack('<BI4I6I4', code + flags, limit.count, period, burst), 1, code, flags))
    end,

    format = function(limit, option, count)
        local code = byte(limit.head, 1) % 16
        option(limit.borrow, 'borrow')
        option(limit.capacity ~= count, string.format('%s=%d', GCRA_SIZES[code], limit.capacity))
        return GCRA_NAMES[code]
    end,
})
