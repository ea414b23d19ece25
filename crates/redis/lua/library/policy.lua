-- The common part of the policy strings (docs/policies.md) of all algorithms. Finds the same errors as the core, in
-- the same order and with the same texts.

-- The algorithms in the order in which errors list their names, and by the numbers of the byte form:
-- - `codes`: their numbers;
-- - `names`: their names, each with the options that it has;
-- - `words`: other words for it, which get a hint;
-- - `parse(text)`: the byte form of an unused key, of the parts of a limit: `algorithm`, `count`, and the parts
--   `units`, `period` and `options`;
-- - `format(limit, option, count)`: calls `option(given, text)` for each option, and returns the name, and the
--   period where it is not a duration.
local algorithms, algorithm_of = {}, {}

local function algorithm(definition)
    algorithms[#algorithms + 1] = definition
    for i = 1, #definition.codes do
        algorithm_of[definition.codes[i]] = definition
    end
end

-- The text between a number of requests and its period, in the limits of other tools.
local REQUESTS = { 'requests', 'request', 'reqs', 'req', 'r', '' }
local RATES = { rps = 's', rpm = 'm', rph = 'h', rpd = 'd' }

local function contains(list, item)
    for i = 1, #list do
        if list[i] == item then
            return i
        end
    end
end

-- A part of the text is a table, so that no part is mistaken for a message. `fault` raises errors, and `parse_policy`
-- catches them.
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

-- The text after "expected" for `name`, which is not an option of an algorithm with the options `known`.
local function hint_option(name, known)
    local meant = closest(name, known)
    if meant then
        return did_you_mean({ meant })
    end
    local size = contains(known, 'burst') and 'burst' or contains(known, 'capacity') and 'capacity'
    if size and #name >= 1 and #name <= 10 and not string.find(name, '[^0-9]') then
        return did_you_mean({ size .. '=' .. name })
    end
    return 'expected ' .. (#known == 0 and 'none' or one_of(known))
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
