-- The text of a policy (docs/policies.md) as the byte form of a key of which nothing is in use. Finds
-- the faults that the core finds, in its order and its words.

-- Each algorithm with the options that it knows.
local ALGORITHMS = {
    { 'gcra', { 'borrow', 'burst' } },
    { 'token-bucket', { 'borrow', 'burst', 'refill' } },
    { 'leaky-bucket', { 'borrow', 'capacity' } },
    { 'leaky-queue', { 'capacity' } },
    { 'fixed-window', { 'align', 'count', 'tz' } },
    { 'sliding-log', { 'count', 'keep', 'keep-max' } },
    { 'sliding-counter', { 'count' } },
}
local GCRA_NAMES = { gcra = 1, ['token-bucket'] = 2, ['leaky-bucket'] = 3, ['leaky-queue'] = 4 }
local CALENDAR = { 'day', 'week', 'month', 'year' }

local function contains(list, item)
    for i = 1, #list do
        if list[i] == item then
            return i
        end
    end
end

-- A part of the text is a table: the text, and at which byte of the whole it stands. What is wrong
-- with one is raised with `fault`, and caught by `parse_policy`.
local function fault(part, message)
    error({ part = part, message = message }, 0)
end

local function part_split(part, separator)
    local at = string.find(part.text, separator, 1, true)
    if not at then
        return part
    end
    return { text = sub(part.text, 1, at - 1), at = part.at }, { text = sub(part.text, at + 1), at = part.at + at }
end

local function part_units(part, name)
    if not string.find(part.text, '^[0-9]+$') then
        fault(part, name .. ' ' .. quoted(part.text) .. ' is not a whole number of units')
    end
    local trimmed = digits_trim(part.text)
    if #trimmed > 10 or tonumber(trimmed) > 4294967295 then
        fault(part, name .. ' ' .. quoted(part.text) .. ' is outside 1..=4294967295')
    end
    return tonumber(trimmed)
end

local function part_period(part, name)
    local micros = period_parse(part.text)
    if micros then
        return micros
    end
    local calendar = ''
    for i = 1, #CALENDAR do
        if sub(part.text, -#CALENDAR[i]) == CALENDAR[i] then
            calendar = '; `day`, `week`, `month` and `year` stand alone, as the period of a fixed-window'
        end
    end
    fault(part, name .. ' ' .. quoted(part.text) .. ' is not a period; one like `250ms`, `60s`, `1m`, '
        .. '`2h`, `1d`, `1w` would do' .. calendar)
end

-- Whether a part is the second of two words, and not the first.
local function part_word(part, name, first, second)
    if not part or part.text == first then
        return false
    elseif part.text == second then
        return true
    end
    fault(part, name .. ' ' .. quoted(part.text) .. ' is unknown; `' .. name .. '=' .. first .. '` or `'
        .. name .. '=' .. second .. '` would do')
end

-- The options of a limit, each at most once.
local function parse_options(rest, algorithm, known)
    local options = {}
    while rest do
        local option, more = part_split(rest, ':')
        local name, value = part_split(option, '=')
        local word = name.text
        -- A bucket may be called by either word for its size.
        if word == 'burst' and contains(known, 'capacity') then
            word = 'capacity'
        elseif word == 'capacity' and contains(known, 'burst') then
            word = 'burst'
        end
        if not contains(known, word) then
            fault(name, algorithm .. ' has no option ' .. quoted(name.text) .. '; it knows '
                .. table.concat(known, ', '))
        end
        local slot = word == 'capacity' and 'burst' or word
        if options[slot] then
            fault(name, 'option `' .. word .. '` is given twice')
        elseif word == 'borrow' and value then
            fault(name, 'option `borrow` takes no value')
        elseif word ~= 'borrow' and not value then
            fault(name, 'option `' .. word .. '` needs a value, as `' .. word .. '=...`')
        end
        options[slot] = value or name
        rest = more
    end
    return options
end

local function check_units(part, name, value)
    if value < 1 then
        fault(part, name .. ' `0` is outside 1..=4294967295')
    end
end

-- Digits as a number, if it is a period.
local function check_period(part, name, micros)
    local value = #micros <= 15 and tonumber(micros) or math.huge
    if value < MIN_PERIOD or value > MAX_PERIOD then
        fault(part, name .. ' `' .. period_format(micros) .. '` is outside 1ms..=366d')
    end
    return value
end

local function check_drain(part, name, value, fits)
    if not fits then
        fault(part, name .. ' `' .. string.format('%d', value) .. '` would take more than 2^50us (35 years) to drain; '
            .. 'a lower ' .. name .. ', a higher limit or a shorter period would do')
    end
end

local function parse_bucket(algorithm, units, count, period, micros, options)
    local burst = options.burst and part_units(options.burst, 'burst') or count
    local interval = part_word(options.refill, 'refill', 'continuous', 'interval')
    local name = (algorithm == 'gcra' or algorithm == 'token-bucket') and 'burst' or 'capacity'
    local burst_part = options.burst or units
    check_units(units, 'limit', count)
    micros = check_period(period, 'period', micros)
    check_units(burst_part, name, burst)
    local flags = options.borrow and 16 or 0
    if interval then
        check_drain(burst_part, name, burst, math.ceil(burst / count) * micros <= MOST)
        return pack('<BI4I6I4I7I6I4', 5 + flags, count, micros, burst, 0, 0, 0)
    end
    local drain, rest = muldiv(burst, micros, 0, count)
    check_drain(burst_part, name, burst, drain < MOST or (drain == MOST and rest == 0))
    return pack('<BI4I6I4I7I4', GCRA_NAMES[algorithm] + flags, count, micros, burst, 0, 0)
end

local function parse_window(units, count, period, options)
    local clock = part_word(options.align, 'align', 'first', 'clock')
    local flags = part_word(options.count, 'count', 'allowed', 'all') and 16 or 0
    local unit = contains(CALENDAR, period.text)
    if unit and options.align and not clock then
        fault(options.align, 'a window of the calendar begins at midnight; `align=clock` or no `align`, or a '
            .. 'period like `1d` instead of `' .. period.text .. '`, would do')
    elseif unit then
        check_units(units, 'limit', count)
        local zone = options.tz and options.tz.text or 'UTC'
        if string.upper(zone) ~= 'UTC' then
            fault(options.tz, 'time zone ' .. quoted(zone) .. ' is not known to functions, which know UTC only; '
                .. '`tz=UTC`, or a client of sluicegate, would do')
        end
        return pack('<BI4BB', 7 + flags, count, unit - 1, 3) .. 'UTC' .. string.rep('\0', 21)
    elseif options.tz then
        fault(options.tz, '`tz` needs a period of the calendar; `day`, `week`, `month` or `year` instead of '
            .. quoted(period.text) .. ' would do')
    end
    local micros = part_period(period, 'period')
    check_units(units, 'limit', count)
    micros = check_period(period, 'period', micros)
    return pack('<BI4I6I7I7', 6 + flags + (clock and 32 or 0), count, micros, 0, 0)
end

local function parse_log(units, count, period, options)
    local keep = options.keep and part_period(options.keep, 'keep')
    local most = options['keep-max'] and part_units(options['keep-max'], 'keep-max')
    local flags = part_word(options.count, 'count', 'allowed', 'all') and 16 or 0
    local micros = part_period(period, 'period')
    check_units(units, 'limit', count)
    micros = check_period(period, 'period', micros)
    if most and not keep then
        fault(options['keep-max'], '`keep-max` needs `keep`, as `keep=1h`')
    elseif not keep then
        return pack('<BI4I6I4', 8 + flags, count, micros, 0)
    end
    keep = check_period(options.keep, 'keep', keep)
    if most and (most < 1 or most > 1048576) then
        fault(options['keep-max'], 'keep-max `' .. string.format('%d', most) .. '` is outside 1..=1048576')
    end
    return pack('<BI4I6I6I4I4', 40 + flags, count, micros, keep, most or keep_default(count, micros, keep), 0)
end

local function parse_limit(whole)
    local name, rest = part_split(whole, ':')
    if not rest then
        fault(whole, 'limit ' .. quoted(whole.text) .. ' has no rate; `gcra:30/60s` would do')
    end
    local known
    local words = {}
    for i = 1, #ALGORITHMS do
        words[i] = ALGORITHMS[i][1]
        if words[i] == name.text then
            known = ALGORITHMS[i][2]
        end
    end
    if not known then
        fault(name, 'algorithm ' .. quoted(name.text) .. ' is unknown; one of ' .. table.concat(words, ', ')
            .. ' would do')
    end
    local rate, more = part_split(rest, ':')
    local units, period = part_split(rate, '/')
    if not period then
        fault(rate, 'rate ' .. quoted(rate.text) .. ' is not N/PERIOD, as `30/60s`')
    end
    local algorithm = name.text
    local options = parse_options(more, algorithm, known)
    local count = part_units(units, 'limit')
    if algorithm == 'fixed-window' then
        return parse_window(units, count, period, options)
    elseif algorithm == 'sliding-log' then
        return parse_log(units, count, period, options)
    elseif algorithm == 'sliding-counter' then
        local micros = part_period(period, 'period')
        local flags = part_word(options.count, 'count', 'allowed', 'all') and 16 or 0
        check_units(units, 'limit', count)
        micros = check_period(period, 'period', micros)
        return pack('<BI4I6I7I7I7', 9 + flags, count, micros, 0, 0, 0)
    end
    return parse_bucket(algorithm, units, count, period, part_period(period, 'period'), options)
end

-- The byte form, or nil and the error.
local function parse_policy(text)
    local valid = utf8_length(text)
    if valid < #text then
        return nil, 'SGPOLICY policy is not UTF-8 from byte ' .. valid .. ' on; ASCII text would do, as `gcra:30/1m`'
    end
    local limits, count, rest = {}, 0, { text = text, at = 0 }
    local good, raised = pcall(function()
        while rest do
            count = count + 1
            if count > 8 then
                fault(rest, 'a policy has at most 8 limits')
            end
            local part, more = part_split(rest, ',')
            limits[count] = parse_limit(part)
            rest = more
        end
    end)
    if good then
        -- Version 1, in which the state of a gcra limit has one length.
        return '\1' .. string.char(count) .. table.concat(limits)
    elseif type(raised) ~= 'table' then
        error(raised, 0)
    end
    return nil, 'SGPOLICY ' .. raised.message .. ' (limit ' .. count .. ', at byte ' .. raised.part.at .. ')'
end

-- Policies by their texts, so that one need not be parsed again: at most so many, and none that is
-- long. When there are more, all are forgotten.
local MOST_POLICIES, LONGEST_TEXT = 1024, 512
local policies, policies_known = {}, 0

local function policy_of(text)
    local policy = policies[text]
    if policy then
        return policy
    end
    local problem
    policy, problem = parse_policy(text)
    if policy and #text <= LONGEST_TEXT then
        if policies_known >= MOST_POLICIES then
            policies, policies_known = {}, 0
        end
        policies[text], policies_known = policy, policies_known + 1
    end
    return policy, problem
end
