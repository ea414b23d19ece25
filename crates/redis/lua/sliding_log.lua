-- sliding-log: machine 8 of the byte form.
--
-- The state of a key is its events, oldest first, as the bytes that are stored (`events`): each is an offset from
-- `base` in `wide` bytes and a weight in `heavy` bytes (none: all weigh 1). They are searched, cut off in front and
-- appended to as bytes, so that a request costs little more than copying them. Therefore `base` may lie before the
-- oldest event, and fields may be wider than necessary: only when an offset outgrows its field are all events written
-- again, with space for another period or more.

local log = {}

-- The greatest keep-max: 2^20 units. The greatest sum of a log: 2^53.
local MAX_KEEP, MAX_TOTAL = 1048576, 9007199254740992
-- Number of weights that are read at once.
local AT_ONCE = 100

function log.read(bytes, at, _, flags)
    local keeps = flags >= 32
    local size = keeps and 21 or 11
    if #bytes < at + size - 1 then
        return nil, EARLY
    end
    local count, period = unpack('<I4I6', bytes, at + 1)
    if count < 1 or period < MIN_PERIOD or period > MAX_PERIOD then
        return nil, DOMAIN
    end
    local keep, units = period, nil
    if keeps then
        keep, units = unpack('<I6I4', bytes, at + 11)
        if keep < MIN_PERIOD or keep > MAX_PERIOD or units < 1 or units > MAX_KEEP then
            return nil, DOMAIN
        end
    end
    return {
        kind = log, head = sub(bytes, at, at + size - 1), capacity = count, period = period,
        retention = math.max(keep, period), keep_units = units, count_all = flags % 32 == 16,
        count = 0,
    }, at + size
end

-- Bytes that hold a number.
local function log_width(number)
    local bytes = 1
    while number >= 256 do
        number, bytes = math.floor(number / 256), bytes + 1
    end
    return bytes
end

local function log_set(limit, count, events)
    limit.count, limit.events, limit.totals, limit.total = count, events, nil, nil
end

function log.load(limit, bytes, at)
    if #bytes < at + 3 then
        return nil, EARLY
    end
    local count = unpack('<I4', bytes, at)
    if count == 0 then
        return at + 4
    elseif #bytes < at + 12 then
        return nil, EARLY
    end
    local base, wide, heavy = unpack('<I7BB', bytes, at + 4)
    if base > MAX_TIME then
        return nil, 'a time is out of bounds'
    elseif wide < 1 or wide > 7 or heavy > 7 then
        return nil, 'the width of an event is out of bounds'
    end
    local next = at + 13 + count * (wide + heavy)
    if #bytes < next - 1 then
        return nil, EARLY
    end
    limit.base, limit.wide, limit.heavy = base, wide, heavy
    log_set(limit, count, sub(bytes, at + 13, next - 1))
    return next
end

function log.save(limit)
    if limit.count == 0 then
        return limit.head .. '\0\0\0\0'
    end
    return limit.head .. pack('<I4I7BB', limit.count, limit.base, limit.wide, limit.heavy)
        .. limit.events
end

function log.unused(limit)
    return limit.count == 0
end

local function log_time(limit, index)
    local at = (index - 1) * (limit.wide + limit.heavy) + 1
    return limit.base + unpack('<I' .. limit.wide, limit.events, at)
end

-- Units up to and including the event at `index`.
local function log_upto(limit, index)
    if index == 0 or limit.heavy == 0 then
        return index
    end
    local totals = limit.totals
    if not totals then
        local sum, each, one = 0, limit.wide + limit.heavy, string.rep('x', limit.wide) .. 'I' .. limit.heavy
        totals = {}
        for from = 1, limit.count, AT_ONCE do
            local many = math.min(AT_ONCE, limit.count - from + 1)
            local weights = { unpack('<' .. string.rep(one, many), limit.events, (from - 1) * each + 1) }
            for i = 1, many do
                sum = sum + weights[i]
                totals[from + i - 1] = sum
            end
        end
        limit.totals = totals
    end
    return totals[index]
end

-- Units of all events.
local function log_total(limit)
    limit.total = limit.total or log_upto(limit, limit.count)
    return limit.total
end

-- The number of events that are not later than `edge`.
local function log_through(limit, edge)
    if limit.count == 0 or log_time(limit, 1) > edge then
        return 0
    end
    local low, high = 1, limit.count + 1
    while high - low > 1 do
        local middle = math.floor((low + high) / 2)
        if log_time(limit, middle) <= edge then
            low = middle
        else
            high = middle
        end
    end
    return low
end

-- The number of oldest events that together weigh less than `units`.
local function log_under(limit, units)
    local low, high = 0, limit.count + 1
    while high - low > 1 do
        local middle = math.floor((low + high) / 2)
        if log_upto(limit, middle) < units then
            low = middle
        else
            high = middle
        end
    end
    return low
end

local function log_drop_first(limit, count)
    if count > 0 then
        -- What is known of the sum stays, because the rest would be unpacked again.
        local total = limit.total and limit.total - log_upto(limit, count)
        log_set(limit, limit.count - count, sub(limit.events, count * (limit.wide + limit.heavy) + 1))
        limit.total = total
    end
end

-- All times and weights.
local function log_list(limit)
    local times, weights = {}, {}
    for i = 1, limit.count do
        times[i] = log_time(limit, i)
        weights[i] = log_upto(limit, i) - log_upto(limit, i - 1)
    end
    return times, weights
end

-- Writes all events again, with space for another retention.
local function log_write(limit, times, weights)
    local count = #times
    if count == 0 then
        return log_set(limit, 0)
    end
    local base, heaviest = times[1], 1
    for i = 1, count do
        heaviest = math.max(heaviest, weights[i])
    end
    local wide = math.max(log_width(2 * limit.retention), log_width(times[count] - base))
    local heavy = heaviest == 1 and 0 or math.max(log_width(heaviest), log_width(limit.capacity))
    local format = '<I' .. wide .. (heavy > 0 and 'I' .. heavy or '')
    local events = {}
    for i = 1, count do
        events[i] = pack(format, times[i] - base, weights[i])
    end
    limit.base, limit.wide, limit.heavy = base, wide, heavy
    log_set(limit, count, table.concat(events))
end

-- Appends events; their times never go down. All are packed before any is appended, because each change of the bytes
-- copies them.
local function log_append(limit, times, weights)
    local count, added, total, more = limit.count, #times, limit.total, 0
    if count == 0 then
        return log_write(limit, times, weights)
    end
    local base, heavy = limit.base, limit.heavy
    local format = '<I' .. limit.wide .. (heavy > 0 and 'I' .. heavy or '')
    local most = math.max(256 ^ heavy - 1, 1)
    local fits, events = times[added] - base < 256 ^ limit.wide, {}
    for i = 1, added do
        fits, more = fits and weights[i] <= most, more + weights[i]
        events[i] = fits and pack(format, times[i] - base, weights[i])
    end
    if fits then
        log_set(limit, count + added, limit.events .. table.concat(events))
        limit.total = total and total + more
        return
    end
    local all_times, all_weights = log_list(limit)
    for i = 1, added do
        all_times[count + i], all_weights[count + i] = times[i], weights[i]
    end
    log_write(limit, all_times, all_weights)
end

-- A log without `keep` may begin with events that had expired when the newest one came: they stay expired, whatever
-- the clock does.
function log.drop_gone(limit)
    if limit.count > 0 and not limit.keep_units then
        log_drop_first(limit, log_through(limit, log_time(limit, limit.count) - limit.period))
    end
end

-- The time as at which the limit decides. Time does not run back for a key: that of the newest event, if that is later than
-- now, by less than a period. If it is later than that, the clock was set back.
function log.decides_at(limit, now)
    local newest = limit.count > 0 and log_time(limit, limit.count) or 0
    return newest > now and newest - now < limit.period and newest or now
end

-- Takes times later than `now` as `now`.
local function log_clamp(limit, now)
    if limit.count > 0 and log_time(limit, limit.count) > now then
        local times, weights = log_list(limit)
        for i = log_through(limit, now) + 1, limit.count do
            times[i] = now
        end
        log_write(limit, times, weights)
    end
end

-- Drops events that need not be stored; more of them if units were `added`. The limit decides as at `now`.
local function log_tidy(limit, now, added)
    log_clamp(limit, now)
    log_drop_first(limit, log_through(limit, now - limit.retention))
    local keep = limit.keep_units
    local surplus = keep and log_total(limit) - keep or 0
    if surplus > 0 then
        -- Events that no longer count are dropped while there are too many units.
        local spare = math.min(log_under(limit, surplus) + 1, log_through(limit, now - limit.period))
        log_drop_first(limit, spare)
    end
    if added then
        -- The oldest whole events are dropped while the rest still sums to the limit; with `keep` only while there
        -- are too many, therefore the first whose loss ends that is the last to be dropped.
        local total = log_total(limit)
        local rest = math.max(0, total - limit.capacity)
        if keep then
            surplus = total - keep
            if surplus > 0 then
                local last = math.min(log_under(limit, surplus) + 1, limit.count)
                rest = math.min(rest, log_upto(limit, last))
            else
                rest = 0
            end
        end
        if rest > 0 then
            log_drop_first(limit, log_under(limit, rest + 1))
        end
    end
end

function log.wait(limit, now, cost)
    local left = limit.capacity - cost
    if left < 0 then
        return NEVER
    end
    local at = log.decides_at(limit, now)
    local gone = log_through(limit, at - limit.period)
    local before = log_upto(limit, gone)
    -- Number of the oldest units that must be dropped first.
    local surplus = log_total(limit) - before - left
    if surplus <= 0 then
        return 0
    end
    local last = log_under(limit, before + surplus) + 1
    return math.min(log_time(limit, last), at) + limit.period - now
end

-- As `wait`, if the only change is that the holds of `ledger` expire, which are `held` units. A hold counts until a period
-- after it expires: as held units first, and then as an event of that time, or of that of the newest event.
function log.wait_beside(limit, now, cost, held, ledger, by_expiry)
    -- Held units that must be dropped, when all events have been.
    local surplus = cost + held - limit.capacity
    if surplus <= 0 then
        return log.wait(limit, now, cost + held)
    end
    for _, number in ipairs(by_expiry(ledger, true)) do
        surplus = surplus - ledger.units[number]
        if surplus <= 0 then
            return math.max(ledger.times[number], log.decides_at(limit, now)) + limit.period - now
        end
    end
end

function log.used(limit, now)
    local gone = log_through(limit, log.decides_at(limit, now) - limit.period)
    return math.min(log_total(limit) - log_upto(limit, gone), MOST)
end

function log.remaining(limit, now)
    return math.max(0, limit.capacity - log.used(limit, now))
end

function log.reset_after(limit, now)
    if limit.count == 0 then
        return 0
    end
    return math.max(0, math.min(log_time(limit, limit.count), log.decides_at(limit, now)) + limit.period - now)
end

function log.lifetime(limit, now)
    return limit.count > 0 and math.max(0, log_time(limit, limit.count) + limit.retention - now) or 0
end

-- Microseconds until the units are gone, if the only change is that the holds of `ledger` expire: the last metered one is
-- the newest event then.
function log.drained_after(limit, now, ledger)
    local latest = log.decides_at(limit, now)
    for i = ledger.count, 1, -1 do
        if ledger.metered[i] then
            latest = math.max(latest, ledger.times[i])
            break
        end
    end
    return latest + limit.period - now
end

-- Charges units at several times, which never go down. What the last charge leaves is what one after the other would,
-- because an event that is dropped after an earlier charge is dropped after a later one.
function log.charge_all(limit, times, units)
    local earliest = log.decides_at(limit, times[1])
    if earliest > times[1] then
        local later = {}
        for i = 1, #times do
            later[i] = math.max(times[i], earliest)
        end
        times = later
    end
    log_clamp(limit, earliest)
    log_append(limit, times, units)
    log_tidy(limit, times[#times], true)
end

function log.charge(limit, now, cost)
    log.charge_all(limit, { now }, { cost })
end

function log.refund(limit, now, cost)
    local at = log.decides_at(limit, now)
    if cost == 0 or limit.count == 0 then
        return log_tidy(limit, at, false)
    end
    local total = log_total(limit)
    local gone = log_through(limit, at - limit.period)
    local kept = total - math.min(cost, total - log_upto(limit, gone))
    -- The last event that stays, and its new weight.
    local last = kept > 0 and log_under(limit, kept) + 1 or 0
    local weight = kept - log_upto(limit, math.max(0, last - 1))
    local each = limit.wide + limit.heavy
    local events = sub(limit.events, 1, last * each)
    if last > 0 and limit.heavy > 0 then
        events = sub(events, 1, -1 - limit.heavy) .. pack('<I' .. limit.heavy, weight)
    end
    log_set(limit, last, events)
    log_tidy(limit, at, false)
end

function log.with_used(limit, now, used)
    if used > 0 then
        log_write(limit, { now }, { used })
    end
end

function log.migrate(limit, old, now)
    local at = log.decides_at(old, now)
    limit.base, limit.wide, limit.heavy = old.base, old.wide, old.heavy
    log_set(limit, old.count, old.events)
    log_clamp(limit, at)
    log_drop_first(limit, log_through(limit, at - old.retention))
    log_tidy(limit, log.decides_at(limit, now), false)
end

-- The fault in the order of the events. Called only when the policy has changed, because it reads all of them.
function log.fault(limit)
    local before = 0
    for i = 1, limit.count do
        local time = log_time(limit, i)
        local total = log_upto(limit, i)
        if time < before or time > MAX_TIME or total == log_upto(limit, i - 1) or total > MAX_TOTAL then
            return 'the events of a log are out of order or out of bounds'
        end
        before = time
    end
end

kinds[8] = log

-- [library]

-- N * keep / P, rounded up, at most 2^20 units.
local function keep_default(count, period, keep)
    local units, rest = muldiv(count, keep, 0, period)
    return math.min(rest > 0 and units + 1 or units, 1048576)
end

algorithm({
    codes = { 8 },
    names = { { 'sliding-log', { 'count', 'keep', 'keep-max' } } },

    parse = function(limit)
        local options, count = limit.options, limit.count
        local keep = options.keep and read_period('keep', options.keep)
        local most = options['keep-max'] and read_units('keep-max', options['keep-max'], 1048576)
        local flags = read_word(options, 'count', 'allowed', 'all') and 16 or 0
        local period = read_period('period', limit.period)
        if most and not keep then
            fault('missing option `keep`: `keep-max` needs it')
        elseif not keep then
            return pack('<BI4I6I4', 8 + flags, count, period, 0)
        end
        return pack('<BI4I6I6I4I4', 40 + flags, count, period, keep, most or keep_default(count, period, keep), 0)
    end,

    format = function(limit, option, count)
        option(limit.count_all, 'count=all')
        if limit.keep_units then
            local keep = unpack('<I6', limit.head, 12)
            option(true, 'keep=' .. period_format(keep))
            option(limit.keep_units ~= keep_default(count, limit.period, keep),
                string.format('keep-max=%d', limit.keep_units))
        end
        return 'sliding-log'
    end,
})
