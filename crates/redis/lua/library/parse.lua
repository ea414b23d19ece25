-- A policy string as the byte form of an unused key, and hints for what is not one.

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

-- The text after "expected" for a limit without a colon.
local function hint_limit(text, names)
    local smooth, window = hint_rate(text)
    if smooth then
        return 'expected an algorithm, such as `' .. smooth .. '` or `' .. window .. '`'
    elseif contains(names, string.lower(text)) then
        return 'expected a rate, such as `' .. string.lower(text) .. ':30/1m`'
    end
    return 'expected ALGORITHM:N/PERIOD, such as `gcra:30/1m`'
end

-- The text after "expected" for an unknown algorithm.
local function hint_algorithm(name, names)
    local meant = closest(name, names)
    if meant then
        return did_you_mean({ meant })
    end
    local word = plain_word(name)
    local others, parts = {}, {}
    for i = 1, #algorithms do
        if contains(algorithms[i].words, word) then
            others[#others + 1] = algorithms[i].names[1][1]
        end
    end
    if #others > 0 then
        return did_you_mean(others)
    end
    for i = 1, #word >= 3 and #names or 0 do
        if string.find(plain_word(names[i]), word, 1, true) then
            parts[#parts + 1] = names[i]
        end
    end
    return #parts > 0 and did_you_mean(parts) or 'expected ' .. one_of(names)
end

local function parse_limit(whole)
    local name, rest = part_split(whole, ':')
    local names, known, parse = {}, nil, nil
    local algorithm = string.lower(name.text)
    for i = 1, #algorithms do
        for j = 1, #algorithms[i].names do
            local word, options = algorithms[i].names[j][1], algorithms[i].names[j][2]
            names[#names + 1] = word
            if word == algorithm then
                known, parse = options, algorithms[i].parse
            end
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
    return parse({
        algorithm = algorithm, count = part_units(units, 'limit'), units = units, period = period, options = options,
    })
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
        return '\2' .. string.char(count) .. table.concat(limits)
    elseif type(raised) ~= 'table' then
        error(raised, 0)
    end
    local several = count <= 8 and string.find(text, ',', 1, true)
    return nil, 'SGPOLICY ' .. raised.message .. (several and ' (limit ' .. count .. ')' or '')
end

-- Cache of parsed policies by their texts: bounded, and without long texts. It is cleared when it is full.
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
