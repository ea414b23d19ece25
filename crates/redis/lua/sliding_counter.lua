-- sliding-counter: machine 9 of the byte form.
--
-- The state of a key is the `start` of the window of the clock in which it last counted, and the units of that window
-- (`cur`) and of the one before (`prev`). The estimate is W = prev*(P - e) + cur*P, in units times P. Only W/P
-- rounded up is needed: for a whole number f, W <= f*P if and only if that is at most f.

local counter = {}

function counter.read(bytes, at, _, flags)
    if #bytes < at + 10 then
        return nil, EARLY
    end
    local count, period = unpack('<I4I6', bytes, at + 1)
    if count < 1 or period < MIN_PERIOD or period > MAX_PERIOD then
        return nil, DOMAIN
    end
    return {
        kind = counter, head = sub(bytes, at, at + 10), capacity = count, period = period,
        count_all = flags == 16, start = 0, prev = 0, cur = 0,
    }, at + 11
end

function counter.load(limit, bytes, at)
    if #bytes < at + 20 then
        return nil, EARLY
    end
    local start, prev, cur = unpack('<I7I7I7', bytes, at)
    if start > MAX_TIME then
        return nil, 'a time is out of bounds'
    elseif prev > MOST or cur > MOST then
        return nil, 'a count is out of bounds'
    elseif prev > 0 or cur > 0 then
        limit.start, limit.prev, limit.cur = start, prev, cur
    end
    return at + 21
end

function counter.save(limit)
    return limit.head .. pack('<I7I7I7', limit.start, limit.prev, limit.cur)
end

function counter.unused(limit)
    return limit.prev == 0 and limit.cur == 0
end

-- Both counts as of the window that contains `now`, and the start of that window. Time does not run back for a key: it is
-- the next window if that has begun already. If a later one has, the clock was set back.
local function counter_current(limit, now)
    local start = now - now % limit.period
    if limit.start >= start then
        return limit.prev, limit.cur, limit.start - now < limit.period and limit.start or start
    elseif limit.start + limit.period == start then
        return limit.cur, 0, start
    end
    return 0, 0, start
end

local function counter_set(limit, start, prev, cur)
    if prev == 0 and cur == 0 then
        start = 0
    end
    limit.start, limit.prev, limit.cur = start, prev, cur
end

-- The estimate in whole units, rounded up.
local function counter_estimate(limit, prev, cur, start, now)
    local units, rest = muldiv(prev, math.min(start + limit.period - now, limit.period), 0, limit.period)
    return cur + (rest > 0 and units + 1 or units)
end

function counter.wait(limit, now, cost)
    local free = limit.capacity - cost
    if free < 0 then
        return NEVER
    end
    local prev, cur, start = counter_current(limit, now)
    if counter_estimate(limit, prev, cur, start, now) <= free then
        return 0
    end
    -- The part of a window that may still weigh: of the previous one during this one, else of this one during the
    -- next.
    local left = start + limit.period - now
    if cur <= free then
        return left - (muldiv(free - cur, limit.period, 0, prev))
    end
    return left + limit.period - (muldiv(free, limit.period, 0, cur))
end

function counter.remaining(limit, now)
    local prev, cur, start = counter_current(limit, now)
    return math.max(0, limit.capacity - counter_estimate(limit, prev, cur, start, now))
end

function counter.reset_after(limit, now)
    local prev, cur, start = counter_current(limit, now)
    if cur > 0 then
        return start + 2 * limit.period - now
    end
    return prev > 0 and start + limit.period - now or 0
end

function counter.latest(limit)
    return limit.start
end

function counter.decides_at(limit, now)
    local _, _, start = counter_current(limit, now)
    return math.max(start, now)
end

function counter.lifetime(limit, now)
    local latest = math.max(limit.start, now)
    return latest - now + counter.reset_after(limit, latest)
end

function counter.used(limit, now)
    local prev, cur, start = counter_current(limit, now)
    return math.min(counter_estimate(limit, prev, cur, start, now), MOST)
end

function counter.charge(limit, now, cost)
    local prev, cur, start = counter_current(limit, now)
    counter_set(limit, start, prev, math.min(cur + cost, MOST))
end

function counter.refund(limit, now, cost)
    local prev, cur, start = counter_current(limit, now)
    counter_set(limit, start, prev, math.max(0, cur - cost))
end

function counter.with_used(limit, now, used)
    counter_set(limit, now - now % limit.period, 0, used)
end

function counter.migrate(limit, old, now)
    if limit.period == old.period then
        local prev, cur, start = counter_current(old, now)
        counter_set(limit, start, prev, cur)
    else
        counter.with_used(limit, counter.decides_at(old, now), counter.used(old, now))
    end
end

kinds[9] = counter

-- [library]

algorithm({
    codes = { 9 },
    names = { { 'sliding-counter', { 'count' } } },

    parse = function(limit)
        local flags = read_word(limit.options, 'count', 'allowed', 'all') and 16 or 0
        return pack('<BI4I6I7I7I7', 9 + flags, limit.count, read_period('period', limit.period), 0, 0, 0)
    end,

    format = function(limit, option)
        option(limit.count_all, 'count=all')
        return 'sliding-counter'
    end,
})
