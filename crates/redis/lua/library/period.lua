-- Periods in the text of a policy: `250ms`, `60s`, `1m`, `2h`, `1d`, `1w`.
--
-- Numbers here are strings of decimal digits, because a text may contain any number, and an error repeats it.

-- Units, longest first, as a small factor of a power of ten in microseconds, with their names; the first name is the
-- canonical one.
local UNITS = {
    { 6048, 8, 'w', 'week', 'weeks' }, { 864, 8, 'd', 'day', 'days' },
    { 36, 8, 'h', 'hr', 'hrs', 'hour', 'hours' }, { 6, 7, 'm', 'min', 'mins', 'minute', 'minutes' },
    { 1, 6, 's', 'sec', 'secs', 'second', 'seconds' },
    { 1, 3, 'ms', 'msec', 'millisecond', 'milliseconds' }, { 1, 0, 'us', 'microsecond', 'microseconds' },
}
-- Without a number these are periods of the calendar.
local CALENDAR = { 'day', 'week', 'month', 'year' }
local SIMILAR = { '1d', '1w', '30d', '365d' }
-- 2^64 - 1: longer periods are printed as this.
local LONGEST = '18446744073709551615'

local function digits_trim(digits)
    digits = string.gsub(digits, '^0+', '')
    return digits == '' and '0' or digits
end

local function digits_times(digits, factor)
    local out, carry = {}, 0
    for at = #digits, 1, -1 do
        carry = carry + (byte(digits, at) - 48) * factor
        out[at] = string.char(48 + carry % 10)
        carry = math.floor(carry / 10)
    end
    return digits_trim(string.format('%d', carry) .. table.concat(out))
end

-- Quotient and remainder.
local function digits_over(digits, divisor)
    local out, rest = {}, 0
    for at = 1, #digits do
        rest = rest * 10 + byte(digits, at) - 48
        out[at] = string.char(48 + math.floor(rest / divisor))
        rest = rest % divisor
    end
    return digits_trim(table.concat(out)), rest
end

-- The lesser of a number and 2^64 - 1.
local function digits_capped(digits)
    if #digits > #LONGEST or (#digits == #LONGEST and digits > LONGEST) then
        return LONGEST
    end
    return digits
end

-- The number of the calendar unit that `unit` names, in any case, singular or plural; or nothing.
local function calendar_word(unit)
    unit = string.lower(unit)
    for i = 1, #CALENDAR do
        if unit == CALENDAR[i] or unit == CALENDAR[i] .. 's' then
            return i
        end
    end
end

-- Microseconds as digits; nil for an invalid period. A unit without a number means one.
local function period_parse(text)
    local count, unit = string.match(text, '^([0-9]*)(.*)$')
    -- `M` may mean months.
    if unit == 'M' or (count == '' and calendar_word(unit)) then
        return
    end
    unit = string.lower(unit)
    for i = 1, #UNITS do
        for j = 3, #UNITS[i] do
            if UNITS[i][j] == unit then
                count = digits_capped(digits_trim(count == '' and '1' or count))
                return digits_capped(digits_trim(digits_times(count, UNITS[i][1]) .. string.rep('0', UNITS[i][2])))
            end
        end
    end
end

-- Formats it in the largest unit that divides it.
local function period_format(micros)
    for i = 1, #UNITS do
        local factor, zeros, word = UNITS[i][1], UNITS[i][2], UNITS[i][3]
        if micros ~= '0' and #micros > zeros and sub(micros, #micros - zeros + 1) == string.rep('0', zeros) then
            local count, rest = digits_over(sub(micros, 1, #micros - zeros), factor)
            if rest == 0 then
                return count .. word
            end
        end
    end
    return '0s'
end

-- The text after "expected" for the invalid period `text`.
local function period_expected(text)
    local count, unit = string.match(text, '^([0-9]*)(.*)$')
    if unit == '' and #count >= 1 and #count <= 9 then
        return 'expected a duration such as `' .. text .. 's`'
    elseif unit == 'M' then
        return 'expected `m` for minutes, or days such as `30d` for a month'
    end
    local word = calendar_word(unit)
    if word then
        return 'expected a duration such as `' .. SIMILAR[word] .. '`, or `' .. CALENDAR[word] .. '` with `fixed-window`'
    end
    local micros = period_parse((string.gsub(text, ' ', '')))
    if micros then
        return 'did you mean `' .. period_format(micros) .. '`?'
    end
    return 'expected a whole number with a unit, such as `250ms`, `60s`, `1m`, `2h` or `1d`'
end
