-- The text of a policy (docs/policies.md) as the byte form of a key of which nothing is in use. Finds
-- the errors that the core finds, in its order and its words.

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

-- Words for an algorithm that are not its name.
local OTHER_NAMES = {
    slidingwindow = { 'sliding-log', 'sliding-counter' },
    movingwindow = { 'sliding-log', 'sliding-counter' },
    slidingwindowlog = { 'sliding-log' },
    slidingwindowcounter = { 'sliding-counter' },
    fixedwindowcounter = { 'fixed-window' },
}
-- What stands between a number of requests and its period, in the limits of other tools.
local REQUESTS = { 'requests', 'request', 'reqs', 'req', 'r', '' }
local RATES = { rps = 's', rpm = 'm', rph = 'h', rpd = 'd' }

local function contains(list, item)
    for i = 1, #list do
        if list[i] == item then
            return i
        end
    end
end

-- A part of the text is a table, so that none is mistaken for a message. Errors are raised with `fault`,
-- and caught by `parse_policy`.
local function fault(_, message)
    error({ message = message }, 0)
end

local function part_split(part, separator)
    local at = string.find(part.text, separator, 1, true)
    if not at then
        return part
    end
    return { text = sub(part.text, 1, at - 1) }, { text = sub(part.text, at + 1) }
end

local function invalid(part, name, expected)
    fault(part, 'invalid ' .. name .. ' ' .. quoted(part.text) .. ': ' .. expected)
end

-- `a`, `b` or `c`, each in backquotes.
local function one_of(words)
    local text = '`' .. words[#words] .. '`'
    if #words > 1 then
        text = '`' .. table.concat(words, '`, `', 1, #words - 1) .. '` or ' .. text
    end
    return text
end

local function did_you_mean(words)
    return 'did you mean ' .. one_of(words) .. '?'
end

local function part_units(part, name)
    if not string.find(part.text, '^[0-9]+$') then
        invalid(part, name, 'expected a whole number from 1 to 4294967295')
    end
    local trimmed = digits_trim(part.text)
    if #trimmed > 10 or tonumber(trimmed) > 4294967295 then
        invalid(part, name, 'expected 1 to 4294967295')
    end
    return tonumber(trimmed)
end

local function part_period(part, name)
    local micros = period_parse(part.text)
    if micros then
        return micros
    end
    invalid(part, name, period_expected(part.text))
end

-- Whether a part is the second of two words, and not the first.
local function part_word(part, name, first, second)
    local word = part and string.lower(part.text)
    if not part or word == first then
        return false
    elseif word == second then
        return true
    end
    invalid(part, name, 'expected `' .. name .. '=' .. first .. '` or `' .. name .. '=' .. second .. '`')
end

-- What is expected in place of `name`, which is not an option of an algorithm with the options `known`.
local function hint_option(name, known)
    local meant = closest(name, known)
    if meant then
        return did_you_mean({ meant })
    end
    local size = contains(known, 'burst') and 'burst' or contains(known, 'capacity') and 'capacity'
    if size and #name >= 1 and #name <= 10 and not string.find(name, '[^0-9]') then
        return did_you_mean({ size .. '=' .. name })
    end
    return 'expected ' .. one_of(known)
end

local EXAMPLES = {
    align = 'align=clock', burst = 'burst=16', capacity = 'capacity=16', count = 'count=all', keep = 'keep=1h',
    ['keep-max'] = 'keep-max=1000', refill = 'refill=interval', tz = 'tz=Asia/Shanghai',
}

-- The options of a limit, each at most once.
local function parse_options(rest, algorithm, known)
    local options = {}
    while rest do
        local option, more = part_split(rest, ':')
        local name, value = part_split(option, '=')
        local word = string.lower(name.text)
        -- The size of a bucket has two names.
        if word == 'burst' and contains(known, 'capacity') then
            word = 'capacity'
        elseif word == 'capacity' and contains(known, 'burst') then
            word = 'burst'
        end
        if not contains(known, word) then
            fault(name, 'unknown option ' .. quoted(name.text) .. ' for ' .. algorithm .. ': '
                .. hint_option(name.text, known))
        end
        local slot = word == 'capacity' and 'burst' or word
        if options[slot] then
            fault(name, 'duplicate option `' .. word .. '`: expected it once')
        elseif word == 'borrow' and value then
            fault(name, 'invalid option ' .. quoted(option.text) .. ': expected `borrow` without a value')
        elseif word ~= 'borrow' and not value then
            fault(name, 'invalid option `' .. word .. '`: expected a value, such as `' .. EXAMPLES[word] .. '`')
        end
        options[slot] = value or name
        rest = more
    end
    return options
end

local function check_units(part, name, value)
    if value < 1 then
        fault(part, 'invalid ' .. name .. ' `0`: expected 1 to 4294967295'
            .. (name == 'limit' and '; to block all requests, use a rule with `block: true`' or ''))
    end
end

-- Digits as a number, if it is a period.
local function check_period(part, name, micros)
    local value = #micros <= 15 and tonumber(micros) or math.huge
    if value < MIN_PERIOD or value > MAX_PERIOD then
        fault(part, 'invalid ' .. name .. ' `' .. period_format(micros) .. '`: expected 1ms to 366d')
    end
    return value
end

local function check_drain(part, name, value, fits)
    if not fits then
        fault(part, string.format('invalid %s `%d`: expected one that drains within 35 years; use a lower %s, a '
            .. 'higher limit or a shorter period', name, value, name))
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
    local unit = contains(CALENDAR, string.lower(period.text))
    if unit and options.align and not clock then
        fault(options.align, 'invalid align `first`: expected `align=clock` with the calendar period `'
            .. CALENDAR[unit] .. '`, or a duration such as `1d`')
    elseif unit then
        check_units(units, 'limit', count)
        local zone = options.tz and options.tz.text or 'UTC'
        if string.upper(zone) ~= 'UTC' then
            fault(options.tz, 'unknown time zone ' .. quoted(zone) .. ': functions know only `tz=UTC`; use a '
                .. 'Sluicegate client or server for others')
        end
        return pack('<BI4BB', 7 + flags, count, unit - 1, 3) .. 'UTC' .. string.rep('\0', 21)
    elseif options.tz then
        fault(options.tz, 'invalid period ' .. quoted(period.text) .. ' with `tz`: expected `day`, `week`, `month` '
            .. 'or `year`')
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
        fault(options['keep-max'], 'invalid option `keep-max`: expected `keep` with it, such as `keep=1h`')
    elseif not keep then
        return pack('<BI4I6I4', 8 + flags, count, micros, 0)
    end
    keep = check_period(options.keep, 'keep', keep)
    if most and (most < 1 or most > 1048576) then
        fault(options['keep-max'], string.format('invalid keep-max `%d`: expected 1 to 1048576', most))
    end
    return pack('<BI4I6I6I4I4', 40 + flags, count, micros, keep, most or keep_default(count, micros, keep), 0)
end

-- The policies that a rate without an algorithm may mean: `100/minute`, `30 per 1 hour`, `10r/s`, `10rps`.
local function hint_rate(text)
    if #text > 40 then
        return
    end
    local count, rest = string.match(string.lower((string.gsub(text, ' ', ''))), '^([0-9]*)(.*)$')
    local trimmed = digits_trim(count)
    if count == '' or trimmed == '0' or #trimmed > 10 or tonumber(trimmed) > 4294967295 then
        return
    end
    local period = RATES[rest]
    for i = 1, period and 0 or #REQUESTS do
        local unit = REQUESTS[i]
        if not period and sub(rest, 1, #unit) == unit then
            local behind = sub(rest, #unit + 1)
            period = string.match(behind, '^/(.*)$') or string.match(behind, '^per(.*)$')
        end
    end
    local word = period and calendar_word(period)
    local smooth, window = word and SIMILAR[word], word and CALENDAR[word]
    if period and not word then
        local micros = period_parse(period)
        if not micros or #micros > 15 or tonumber(micros) < MIN_PERIOD or tonumber(micros) > MAX_PERIOD then
            return
        end
        smooth, window = period_format(micros), period_format(micros)
    end
    return smooth and 'gcra:' .. trimmed .. '/' .. smooth, window and 'fixed-window:' .. trimmed .. '/' .. window
end

-- What is expected in place of a limit that has no colon.
local function hint_limit(text, names)
    local smooth, window = hint_rate(text)
    if smooth then
        return 'expected an algorithm, such as `' .. smooth .. '` or `' .. window .. '`'
    elseif contains(names, string.lower(text)) then
        return 'expected a rate, such as `' .. string.lower(text) .. ':30/1m`'
    end
    return 'expected ALGORITHM:N/PERIOD, such as `gcra:30/1m`'
end

-- What is expected in place of a name that no algorithm has.
local function hint_algorithm(name, names)
    local meant = closest(name, names)
    if meant then
        return did_you_mean({ meant })
    end
    local word = plain_word(name)
    if OTHER_NAMES[word] then
        return did_you_mean(OTHER_NAMES[word])
    end
    local parts = {}
    for i = 1, #word >= 3 and #names or 0 do
        if string.find(plain_word(names[i]), word, 1, true) then
            parts[#parts + 1] = names[i]
        end
    end
    return #parts > 0 and did_you_mean(parts) or 'expected ' .. one_of(names)
end

local function parse_limit(whole)
    local name, rest = part_split(whole, ':')
    local names, known = {}, nil
    local algorithm = string.lower(name.text)
    for i = 1, #ALGORITHMS do
        names[i] = ALGORITHMS[i][1]
        if names[i] == algorithm then
            known = ALGORITHMS[i][2]
        end
    end
    if not rest then
        invalid(whole, 'policy', hint_limit(whole.text, names))
    elseif not known then
        fault(name, 'unknown algorithm ' .. quoted(name.text) .. ': ' .. hint_algorithm(name.text, names))
    end
    local rate, more = part_split(rest, ':')
    local units, period = part_split(rate, '/')
    if not period then
        invalid(rate, 'rate', 'expected N/PERIOD, such as `30/1m`')
    end
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
        return nil, 'SGPOLICY invalid policy: byte ' .. valid .. ' is not UTF-8; expected ASCII such as `gcra:30/1m`'
    end
    local limits, count, rest = {}, 0, { text = text }
    local good, raised = pcall(function()
        while rest do
            count = count + 1
            if count > 8 then
                local _, commas = string.gsub(text, ',', '')
                fault(rest, 'invalid number of limits `' .. commas + 1 .. '`: expected 1 to 8')
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
    local several = count <= 8 and string.find(text, ',', 1, true)
    return nil, 'SGPOLICY ' .. raised.message .. (several and ' (limit ' .. count .. ')' or '')
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
