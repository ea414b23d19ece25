-- fixed-window: machines 6 (of a fixed length) and 7 (of the calendar) of the byte form.
--
-- The state of a key is the `start` of its window, the units `used` in it, and for the calendar the `finish` of the
-- window, by which readers without calendars can determine whether it is still open. A limit of the calendar has the
-- window around now (`first`, `next`) once `calendar` has returned it.

local window = {}

function window.read(bytes, at, machine, flags)
    if machine == 7 then
        return window.read_calendar(bytes, at, flags)
    end
    if #bytes < at + 10 then
        return nil, EARLY
    end
    local count, period = unpack('<I4I6', bytes, at + 1)
    if count < 1 or period < MIN_PERIOD or period > MAX_PERIOD then
        return nil, DOMAIN
    end
    return {
        kind = window, head = sub(bytes, at, at + 10), capacity = count, period = period,
        count_all = flags % 32 == 16, clock = flags >= 32, start = 0, used = 0,
    }, at + 11
end

function window.read_calendar(bytes, at, flags)
    if #bytes < at + 6 or #bytes < at + 6 + byte(bytes, at + 6) then
        return nil, EARLY
    end
    local count, unit, length = unpack('<I4BB', bytes, at + 1)
    if unit > 3 then
        return nil, 'a calendar unit is unknown'
    elseif count < 1 or length == 0 then
        return nil, DOMAIN
    end
    return {
        kind = window, head = sub(bytes, at, at + 6 + length), capacity = count,
        calendar = sub(bytes, at + 5, at + 6 + length), unit = unit,
        count_all = flags == 16, start = 0, finish = 0, used = 0,
    }, at + 7 + length
end

function window.load(limit, bytes, at)
    local size = limit.calendar and 21 or 14
    if #bytes < at + size - 1 then
        return nil, EARLY
    end
    local start, finish, used = unpack('<I7I7', bytes, at)
    if limit.calendar then
        used = unpack('<I7', bytes, at + 14)
    else
        finish, used = 0, finish
    end
    if start > MAX_TIME or finish > MAX_TIME then
        return nil, 'a time is out of bounds'
    elseif used > MOST then
        return nil, 'a count is out of bounds'
    elseif used > 0 then
        limit.start, limit.finish, limit.used = start, finish, used
    end
    return at + size
end

function window.save(limit)
    if limit.calendar then
        return limit.head .. pack('<I7I7I7', limit.start, limit.finish, limit.used)
    end
    return limit.head .. pack('<I7I7', limit.start, limit.used)
end

function window.unused(limit)
    return limit.used == 0
end

-- Start and end of the window around `time` of a limit of the calendar: `time` is that of a request or, after a clock
-- stepped back, a later one. If the client did not send that window, `time` is a period later at least.
local function window_around(limit, time)
    if limit.next and time >= limit.next then
        local first, next = limit.calendars(limit.calendar, time)
        if first then
            return first, next
        end
    end
    return limit.first, limit.next
end

-- The end of the window that began at `start`. A window of the calendar ends at the first boundary after its start: that of
-- the window around now, or one before; that of a window which begins later than now is stored.
local function window_end(limit, start)
    if not limit.calendar then
        return start + limit.period
    elseif not limit.next or (start >= limit.next and start == limit.start) then
        return limit.finish
    elseif start >= limit.next then
        local _, next = window_around(limit, start)
        return next
    end
    return start >= limit.first and limit.next or limit.first
end

-- The start of the window that a request at `now` opens.
local function window_start(limit, now)
    if limit.calendar then
        return (window_around(limit, now))
    end
    return limit.clock and now - now % limit.period or now
end

-- The start of the window that is still open at `now`, and the units used in it. Time does not run back for a key: the
-- window may begin later than now, by less than its length. If it begins later than that, the clock was set back.
local function window_open(limit, now)
    if limit.used > 0 then
        local start = limit.start
        local finish = window_end(limit, start)
        if start > now and start - now >= finish - start then
            return window_start(limit, now), limit.used
        elseif now < finish then
            return start, limit.used
        end
    end
    return nil, 0
end

local function window_set(limit, now, start, used)
    if used == 0 then
        limit.start, limit.finish, limit.used = 0, 0, 0
        return
    end
    start = start or window_start(limit, now)
    limit.start, limit.finish, limit.used = start, window_end(limit, start), math.min(used, MOST)
end

function window.wait(limit, now, cost)
    local left = limit.capacity - cost
    if left < 0 then
        return NEVER
    end
    local start, used = window_open(limit, now)
    return used > left and window_end(limit, start) - now or 0
end

function window.remaining(limit, now)
    local _, used = window_open(limit, now)
    return math.max(0, limit.capacity - used)
end

function window.reset_after(limit, now)
    local start = window_open(limit, now)
    return start and window_end(limit, start) - now or 0
end

function window.latest(limit)
    return limit.start
end

function window.decides_at(limit, now)
    local start = window_open(limit, now)
    return start and math.max(start, now) or now
end

function window.lifetime(limit, now)
    if limit.used == 0 or limit.start <= now then
        return window.reset_after(limit, now)
    end
    return window_end(limit, limit.start) - now
end

function window.used(limit, now)
    local _, used = window_open(limit, now)
    return used
end

function window.charge(limit, now, cost)
    local start, used = window_open(limit, now)
    window_set(limit, now, start, used + cost)
end

function window.refund(limit, now, cost)
    local start, used = window_open(limit, now)
    window_set(limit, now, start, math.max(0, used - cost))
end

function window.with_used(limit, now, used)
    window_set(limit, now, nil, used)
end

function window.migrate(limit, old, now)
    local start, used = window_open(old, now)
    if start and now < window_end(limit, start) then
        window_set(limit, now, start, used)
    else
        window_set(limit, now, nil, 0)
    end
end

kinds[6], kinds[7] = window, window

-- [library]

algorithm({
    codes = { 6, 7 },
    names = { { 'fixed-window', { 'align', 'count', 'tz' } } },

    parse = function(limit)
        local options = limit.options
        local clock = read_word(options, 'align', 'first', 'clock')
        local flags = read_word(options, 'count', 'allowed', 'all') and 16 or 0
        local unit = contains(CALENDAR, string.lower(limit.period))
        if unit and options.align and not clock then
            invalid('align', options.align, '`align=clock` with a period of the calendar')
        elseif unit then
            local zone = options.tz or 'UTC'
            if string.upper(zone) ~= 'UTC' then
                fault('unknown time zone `' .. shown(zone) .. '`: functions know only `tz=UTC`; use a '
                    .. 'Sluicegate client or server for others')
            end
            return pack('<BI4BB', 7 + flags, limit.count, unit - 1, 3) .. 'UTC' .. string.rep('\0', 21)
        elseif options.tz then
            invalid('period', limit.period, 'day, week, month or year with `tz`')
        end
        local micros = read_period('period', limit.period)
        return pack('<BI4I6I7I7', 6 + flags + (clock and 32 or 0), limit.count, micros, 0, 0)
    end,

    format = function(limit, option)
        option(limit.clock, 'align=clock')
        option(limit.count_all, 'count=all')
        if not limit.calendar then
            return 'fixed-window'
        end
        local zone = sub(limit.calendar, 3)
        option(zone ~= 'UTC', 'tz=' .. zone)
        return 'fixed-window', CALENDAR[limit.unit + 1]
    end,
})
