-- Periods in the text of a policy: `250ms`, `60s`, `1m`, `2h`, `1d`, `1w`.
--
-- Numbers here are strings of decimal digits, since any may be written, and an error tells what was.

-- Units, longest first, as a small factor of a power of ten in microseconds; of equals, the word that
-- is written out first.
local UNITS = {
    { 'w', 6048, 8 }, { 'd', 864, 8 }, { 'h', 36, 8 }, { 'hour', 36, 8 },
    { 'm', 6, 7 }, { 'min', 6, 7 }, { 'minute', 6, 7 },
    { 's', 1, 6 }, { 'sec', 1, 6 }, { 'second', 1, 6 }, { 'ms', 1, 3 }, { 'us', 1, 0 },
}
-- 2^64 - 1: what is longer is told as this.
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

-- Quotient and rest.
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

-- Microseconds as digits; nil for what is no period. A unit alone means one.
local function period_parse(text)
    local count, word = string.match(text, '^([0-9]*)(.*)$')
    for i = 1, #UNITS do
        if UNITS[i][1] == word then
            count = digits_capped(digits_trim(count == '' and '1' or count))
            return digits_capped(digits_trim(digits_times(count, UNITS[i][2]) .. string.rep('0', UNITS[i][3])))
        end
    end
end

-- In the largest unit that divides it.
local function period_format(micros)
    for i = 1, #UNITS do
        local word, factor, zeros = UNITS[i][1], UNITS[i][2], UNITS[i][3]
        if micros ~= '0' and #micros > zeros and sub(micros, #micros - zeros + 1) == string.rep('0', zeros) then
            local count, rest = digits_over(sub(micros, 1, #micros - zeros), factor)
            if rest == 0 then
                return count .. word
            end
        end
    end
    return '0s'
end

-- The units that a log keeps where its text doesn't say: N*keep/P, rounded up, at most 2^20.
local function keep_default(count, period, keep)
    local units, rest = muldiv(count, keep, 0, period)
    return math.min(rest > 0 and units + 1 or units, 1048576)
end
