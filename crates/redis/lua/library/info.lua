-- What is stored of a key, in words and numbers.

local NAMES = { 'gcra', 'token-bucket', 'leaky-bucket', 'leaky-queue' }

-- A limit in canonical form.
local function limit_format(limit)
    local head = limit.head
    local machine = byte(head, 1) % 16
    local count = unpack('<I4', head, 2)
    local options, name = {}, NAMES[machine]
    local function option(given, text)
        if given then
            options[#options + 1] = ':' .. text
        end
    end
    local period = limit.period and period_format(string.format('%d', limit.period))
    if machine <= 5 then
        local size = machine >= 3 and machine <= 4 and 'capacity' or 'burst'
        option(limit.borrow, 'borrow')
        option(limit.capacity ~= count, string.format('%s=%d', size, limit.capacity))
        if machine == 5 then
            name = 'token-bucket'
            option(true, 'refill=interval')
        end
    elseif machine <= 7 then
        name = 'fixed-window'
        option(limit.clock, 'align=clock')
        option(limit.count_all, 'count=all')
        if limit.calendar then
            period = CALENDAR[limit.unit + 1]
            local zone = sub(limit.calendar, 3)
            option(zone ~= 'UTC', 'tz=' .. zone)
        end
    else
        name = machine == 8 and 'sliding-log' or 'sliding-counter'
        option(limit.count_all, 'count=all')
        if limit.keep_units then
            local keep = unpack('<I6', head, 12)
            option(true, 'keep=' .. period_format(string.format('%d', keep)))
            option(limit.keep_units ~= keep_default(count, limit.period, keep),
                string.format('keep-max=%d', limit.keep_units))
        end
    end
    return string.format('%s:%d/%s', name, count, period) .. table.concat(options)
end

-- Names and values, one after the other; false for a key that has recovered.
local function describe(key, bytes, now)
    if cell_time(bytes) then
        return say_cell(key)
    end
    local wrong, version = read_fault(bytes)
    local limits
    if version then
        return say_version(key, version)
    elseif not wrong then
        limits, wrong = read_all(bytes)
    end
    if wrong then
        return say_damaged(key, wrong)
    end
    local told, texts, reset, lives = {}, {}, 0, 0
    for i = 1, #limits do
        local limit = limits[i]
        local own = limit.kind.reset_after(limit, now)
        reset, lives = math.max(reset, own), math.max(lives, limit.kind.lifetime(limit, now))
        texts[i] = limit_format(limit)
        told[i] = {
            'limit', texts[i], 'capacity', limit.capacity, 'used', limit.kind.used(limit, now),
            'remaining', limit.kind.remaining(limit, now), 'reset_after_us', own,
        }
    end
    return lives > 0 and {
        'policy', table.concat(texts, ','), 'reset_after_us', reset, 'lifetime_us', lives, 'bytes', #bytes,
        'limits', told,
    }
end
