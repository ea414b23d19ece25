-- Policy strings (docs/policies.md) as the byte form of an unused key. Accepts the same texts as the core. An error says
-- what is invalid and what is expected.

-- The algorithms, by the numbers of the byte form and by their names:
-- - `codes`: their numbers;
-- - `names`: their names, each with the options that it has (`burst` is also `capacity`);
-- - `parse(limit)`: the byte form of an unused key, of `name`, `count`, `period` and `options`;
-- - `format(limit, option, count)`: calls `option(given, text)` for each option, and returns the name, and the
--   period where it is not a duration.
local algorithm_of, algorithm_named, algorithm_names = {}, {}, {}

local function algorithm(definition)
    for i = 1, #definition.codes do
        algorithm_of[definition.codes[i]] = definition
    end
    for i = 1, #definition.names do
        local name = definition.names[i][1]
        algorithm_named[name] = { options = definition.names[i][2], parse = definition.parse }
        algorithm_names[#algorithm_names + 1] = name
    end
end

local function contains(list, item)
    for i = 1, #list do
        if list[i] == item then
            return i
        end
    end
end

-- Raises an error, which `parse_policy` catches.
local function fault(message)
    error({ message = message }, 0)
end

local function invalid(name, text, expected)
    fault('invalid ' .. name .. ' `' .. shown(text) .. '`: expected ' .. expected)
end

-- Units of periods, longest first: their microseconds and names. The first name is the canonical one.
local UNITS = {
    { 604800000000, 'w', 'week', 'weeks' }, { 86400000000, 'd', 'day', 'days' },
    { 3600000000, 'h', 'hr', 'hrs', 'hour', 'hours' }, { 60000000, 'm', 'min', 'mins', 'minute', 'minutes' },
    { 1000000, 's', 'sec', 'secs', 'second', 'seconds' },
    { 1000, 'ms', 'msec', 'millisecond', 'milliseconds' }, { 1, 'us', 'microsecond', 'microseconds' },
}
-- Without a number these are periods of the calendar.
local CALENDAR = { 'day', 'week', 'month', 'year' }

-- Microseconds. A unit without a number means one.
local function read_period(name, text)
    local count, unit = string.match(text, '^([0-9]*)(.*)$')
    local word = string.lower(unit)
    -- `M` may mean months, and a calendar word without a number is no duration.
    local is_calendar = count == '' and contains(CALENDAR, (string.gsub(word, 's$', '')))
    for i = 1, (unit == 'M' or is_calendar) and 0 or #UNITS do
        if contains(UNITS[i], word) then
            local micros = (tonumber(count) or 1) * UNITS[i][1]
            if micros >= MIN_PERIOD and micros <= MAX_PERIOD then
                return micros
            end
        end
    end
    invalid(name, text, 'a duration from 1ms to 366d, such as `250ms`, `60s`, `1m`, `2h` or `1d`')
end

-- Formats microseconds in the largest unit that divides them.
local function period_format(micros)
    for i = 1, #UNITS do
        if micros % UNITS[i][1] == 0 then
            return string.format('%d%s', micros / UNITS[i][1], UNITS[i][2])
        end
    end
end

local function read_units(name, text, most)
    local units = string.find(text, '^[0-9]+$') and tonumber(text)
    if not units or units < 1 or units > most then
        invalid(name, text, string.format('a whole number from 1 to %d', most))
    end
    return units
end

-- Whether an option has the second of two words, and not the first.
local function read_word(options, name, first, second)
    local word = options[name] and string.lower(options[name])
    if word and word ~= first and word ~= second then
        invalid(name, options[name], first .. ' or ' .. second)
    end
    return word == second
end

-- The size of a bucket that drains within 35 years.
local function check_drain(units, fits)
    if not fits then
        invalid('burst', string.format('%d', units), 'one that drains within 35 years')
    end
end

-- What is before the first separator, and what is behind it.
local function split(text, separator)
    local at = string.find(text, separator, 1, true)
    if not at then
        return text
    end
    return sub(text, 1, at - 1), sub(text, at + 1)
end

-- The options of a limit, each at most once.
local function read_options_of(rest, name, known)
    local options = {}
    while rest do
        local option
        option, rest = split(rest, ':')
        local given, value = split(option, '=')
        local word = string.lower(given)
        if word == 'capacity' then
            word = 'burst'
        end
        if not contains(known, word) then
            fault('unknown option `' .. shown(given) .. '` for ' .. name .. ': expected '
                .. (#known == 0 and 'none' or table.concat(known, ' or ')))
        elseif options[word] then
            fault('duplicate option `' .. word .. '`: expected it once')
        elseif (word == 'borrow') == (value ~= nil) then
            invalid('option', option, word == 'borrow' and 'borrow without a value' or word .. '=VALUE')
        end
        options[word] = value or given
    end
    return options
end

local function parse_limit(text)
    local name, rest = split(text, ':')
    local rate, options = split(rest or '', ':')
    local count, period = split(rate, '/')
    local definition = algorithm_named[string.lower(name)]
    if not period then
        invalid('policy', text, 'ALGORITHM:N/PERIOD, such as `gcra:30/1m`')
    elseif not definition then
        fault('unknown algorithm `' .. shown(name) .. '`: expected ' .. table.concat(algorithm_names, ', '))
    end
    name = string.lower(name)
    options = read_options_of(options, name, definition.options)
    count = read_units('limit', count, name == 'concurrency' and 65536 or 4294967295)
    return definition.parse({ name = name, count = count, period = period, options = options })
end

-- The byte form, or nil and the error.
local function parse_policy(text)
    local limits, rest = {}, text
    local good, raised = pcall(function()
        while rest do
            local limit
            limit, rest = split(rest, ',')
            if #limits == 8 then
                invalid('policy', text, '1 to 8 limits')
            end
            limits[#limits + 1] = parse_limit(limit)
        end
    end)
    if good then
        return '\2' .. string.char(#limits) .. table.concat(limits)
    elseif type(raised) ~= 'table' then
        error(raised, 0)
    end
    return nil, 'SGPOLICY ' .. raised.message
end

-- A take under one limit of the gcra family, as the fast path of scripts has it (fast_gcra.lua).
local fast_take

-- What `fast_take` needs of a policy; nothing where it does not apply.
local function fast_limit(bytes, limits)
    local limit = limits[1]
    if #limits == 1 and limit.kind.owe and not limit.borrow and limit.capacity * limit.p < 4503599627370496 then
        return { limit.n, limit.p, limit.capacity, limit.queue and 1 or 2, sub(bytes, 1, 17) }
    end
end

-- Cache of parsed policies by their texts: bounded, and without long texts. It is cleared when it is full.
local MOST_POLICIES, LONGEST_TEXT = 1024, 512
local policies, policies_known = {}, 0

-- A policy: its byte form, its unused limits, and what `fast_take` needs. Or nil and the error.
local function policy_of(text)
    local policy = policies[text]
    if policy then
        return policy
    end
    local bytes, problem = parse_policy(text)
    if not bytes then
        return nil, problem
    end
    local limits = read_all(bytes)
    policy = { bytes = bytes, limits = limits, fast = fast_limit(bytes, limits) }
    if #text <= LONGEST_TEXT then
        if policies_known >= MOST_POLICIES then
            policies, policies_known = {}, 0
        end
        policies[text], policies_known = policy, policies_known + 1
    end
    return policy
end
