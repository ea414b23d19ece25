-- token-bucket with refill=interval: machine 5 of the byte form. A tokens each interval I.
--
-- The state of a key is the time of the last step (`last`), and the number of tokens missing from a full bucket. That
-- may exceed 2^53, therefore it is stored as whole steps of A tokens and the tokens beyond (`steps`, `units`), which
-- are small numbers.

local bucket = {}

function bucket.read(bytes, at, _, flags)
    if #bytes < at + 14 then
        return nil, EARLY
    end
    local amount, interval, burst = unpack('<I4I6I4', bytes, at + 1)
    if amount < 1 or burst < 1 or interval < MIN_PERIOD or interval > MAX_PERIOD
        or math.ceil(burst / amount) * interval > MOST then
        return nil, DOMAIN
    end
    return {
        kind = bucket, head = sub(bytes, at, at + 14), capacity = burst, period = interval,
        amount = amount, most = math.floor(MOST / interval), borrow = flags == 16,
        last = 0, steps = 0, units = 0,
    }, at + 15
end

-- Sets the missing tokens, at most as many as come in 2^50 microseconds.
local function bucket_set(limit, steps, units, last)
    if units >= limit.amount then
        steps, units = steps + 1, units - limit.amount
    end
    if steps >= limit.most then
        steps, units = limit.most, 0
    end
    if steps == 0 and units == 0 then
        last = 0
    end
    limit.steps, limit.units, limit.last = steps, units, last
end

function bucket.load(limit, bytes, at)
    if #bytes < at + 16 then
        return nil, EARLY
    end
    local last, low, high = unpack('<I7I6I4', bytes, at)
    local steps, units = muldiv(high, 281474976710656, low, limit.amount) -- 2^48
    if last > MAX_TIME then
        return nil, 'a time is out of bounds'
    elseif steps > limit.most or (steps == limit.most and units > 0) then
        return nil, 'a count is out of bounds'
    end
    bucket_set(limit, steps, units, last)
    return at + 17
end

function bucket.save(limit)
    local high, low = muldiv(limit.steps, limit.amount, limit.units, 281474976710656)
    return limit.head .. pack('<I7I6I4', limit.last, low, high)
end

function bucket.unused(limit)
    return limit.steps == 0 and limit.units == 0
end

-- The missing tokens after all steps up to `now`, and the time of the last step. Time does not run back for a key: it may
-- be later than now, by less than an interval. If it is later than that, the clock was set back.
local function bucket_refilled(limit, now)
    local steps, units, last = limit.steps, limit.units, limit.last
    if last - now >= limit.period then
        last = now
    end
    local done = last < now and math.floor((now - last) / limit.period) or 0
    if steps < done or (steps == done and units == 0) then
        return 0, 0, now
    end
    return steps - done, units, last + done * limit.period
end

-- Subtracts `tokens`, down to 0.
local function bucket_less(limit, steps, units, tokens)
    local rest = tokens % limit.amount
    steps, units = steps - (tokens - rest) / limit.amount, units - rest
    if units < 0 then
        steps, units = steps - 1, units + limit.amount
    end
    if steps < 0 then
        return 0, 0
    end
    return steps, units
end

-- Microseconds until all but `left` of the missing tokens are back.
local function bucket_until(limit, now, left)
    local steps, units, last = bucket_refilled(limit, now)
    steps, units = bucket_less(limit, steps, units, left)
    if steps == 0 and units == 0 then
        return 0
    end
    return last + (units > 0 and steps + 1 or steps) * limit.period - now
end

function bucket.wait(limit, now, cost)
    local needed = limit.borrow and 1 or cost
    if needed > limit.capacity then
        return NEVER
    end
    return bucket_until(limit, now, limit.capacity - needed)
end

function bucket.remaining(limit, now)
    local steps, units = bucket_refilled(limit, now)
    -- Inexact only far beyond any capacity.
    return math.max(0, limit.capacity - (steps * limit.amount + units))
end

function bucket.reset_after(limit, now)
    return bucket_until(limit, now, 0)
end

function bucket.latest(limit)
    return limit.last
end

function bucket.decides_at(limit, now)
    local _, _, last = bucket_refilled(limit, now)
    return math.max(last, now)
end

function bucket.lifetime(limit, now)
    local latest = math.max(limit.last, now)
    return latest - now + bucket_until(limit, latest, 0)
end

function bucket.used(limit, now)
    local steps, units = bucket_refilled(limit, now)
    return math.min(steps * limit.amount + units, MOST)
end

function bucket.charge(limit, now, cost)
    local steps, units, last = bucket_refilled(limit, now)
    local rest = cost % limit.amount
    bucket_set(limit, steps + (cost - rest) / limit.amount, units + rest, last)
end

function bucket.refund(limit, now, cost)
    local steps, units, last = bucket_refilled(limit, now)
    steps, units = bucket_less(limit, steps, units, cost)
    bucket_set(limit, steps, units, last)
end

function bucket.with_used(limit, now, used)
    local rest = used % limit.amount
    bucket_set(limit, (used - rest) / limit.amount, rest, now)
end

function bucket.migrate(limit, old, now)
    local steps, units, last = bucket_refilled(old, now)
    steps, units = muldiv(steps, old.amount, units, limit.amount)
    bucket_set(limit, steps, units, now - last < limit.period and last or now)
end

kinds[5] = bucket

-- [library]

-- A `token-bucket` with `refill=interval`: `gcra.lua` parses the name.
algorithm({
    codes = { 5 },
    names = {},

    parse = function(limit)
        local burst, period, flags = bucket_parts(limit)
        check_drain(burst, math.ceil(burst / limit.count) * period <= MOST)
        return pack('<BI4I6I4I7I6I4', 5 + flags, limit.count, period, burst, 0, 0, 0)
    end,

    format = function(limit, option, count)
        option(limit.borrow, 'borrow')
        option(limit.capacity ~= count, string.format('burst=%d', limit.capacity))
        option(true, 'refill=interval')
        return 'token-bucket'
    end,
})
