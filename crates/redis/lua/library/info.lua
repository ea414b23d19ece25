-- The stored state of a key, as text and numbers.

-- A limit in canonical form.
local function limit_format(limit)
    local code = byte(limit.head, 1) % 16
    local count = unpack('<I4', limit.head, 2)
    local options = {}
    local name, period = algorithm_of[code].format(limit, function(given, text)
        if given then
            options[#options + 1] = ':' .. text
        end
    end, count)
    return string.format('%s:%d/%s', name, count, period or period_format(limit.period)) .. table.concat(options)
end

local function say_zone(key)
    return { err = 'ERR key `' .. shown(key) .. '` was written with a time zone other than UTC, which '
        .. 'functions do not know; use a Sluicegate client or server' }
end

-- Names and values in turn; false for a key that has recovered.
local function describe(key, bytes, now)
    if cell_time(bytes) then
        return cell_error(key)
    end
    local wrong, version = read_fault(bytes)
    local limits
    if version then
        return version_error(key, version)
    elseif not wrong then
        limits, wrong = read_all(bytes)
    end
    if limits and limits.rest then
        local known
        known, wrong = read_holds(limits, bytes, now, function(limit)
            limit.calendars, limit.first, limit.next, limit.after = utc_window, utc_window(limit.calendar, now)
            return limit.next
        end)
        if known == nil then
            return say_zone(key)
        elseif limits.open then
            with_holds().attach(limits, limits.open)
        end
    end
    if wrong then
        return damaged_error(key, wrong)
    end
    local described, texts, reset, lives = {}, {}, 0, 0
    for i = 1, #limits do
        local limit = limits[i]
        local own = limit.kind.reset_after(limit, now)
        reset, lives = math.max(reset, own), math.max(lives, limit.kind.lifetime(limit, now))
        texts[i] = limit_format(limit)
        described[i] = {
            'limit', texts[i], 'capacity', limit.capacity, 'used', limit.kind.used(limit, now),
            'remaining', limit.kind.remaining(limit, now), 'reset_after_us', own,
        }
    end
    return lives > 0 and {
        'policy', table.concat(texts, ','), 'reset_after_us', reset, 'lifetime_us', lives, 'bytes', #bytes,
        'limits', described,
    }
end
