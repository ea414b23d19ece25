-- Exact arithmetic on whole numbers beyond 2^53, where doubles are inexact: by parts.

-- The longest time in microseconds that a state may take to drain, and the greatest count: 2^50.
local MOST = 1125899906842624
-- No time in a state is beyond the last timestamp and the longest debt: 2^52 + 2^50.
local MAX_TIME = 5629499534213120
-- A wait that never ends.
local NEVER = math.huge

-- The floor of (a*b + add) / c and the remainder, exactly, for whole numbers 0 <= a < 2^53, 0 <= b, add < 2^52 and 0
-- < c <= 2^50. For a quotient beyond 2^53, some number beyond 2^53.
local function muldiv(a, b, add, c)
    local sum = a * b + add
    if sum < 4503599627370496 then
        -- 2^52: the sum is exact, and a quotient this small never rounds up to a whole number.
        local rest = sum % c
        return (sum - rest) / c, rest
    end
    -- a's digits are taken from the highest down, in a base so small that `base * c`, twice, is exact.
    local base = 2
    while base * 2 * c <= 2251799813685248 do
        base = base * 2
    end
    local unit = 1
    while unit * base <= a do
        unit = unit * base
    end
    local b_rest = b % c
    local b_whole = (b - b_rest) / c
    local quotient, rest = 0, 0
    while unit >= 1 do
        local digit = math.floor(a / unit)
        a = a - digit * unit
        unit = unit / base
        local more = rest * base + digit * b_rest
        rest = more % c
        quotient = quotient * base + digit * b_whole + (more - rest) / c
    end
    local add_rest = add % c
    quotient = quotient + (add - add_rest) / c
    rest = rest + add_rest
    if rest >= c then
        quotient, rest = quotient + 1, rest - c
    end
    return quotient, rest
end
