-- Windows of the calendar in UTC.

local DAY = 86400000000

-- Days from the epoch to the first of a month (1 is January; 13 is that of the next year).
local function days_to(year, month)
    -- A year counts from March, so that a leap day comes last.
    local years = month <= 2 and year - 1 or year
    local days = math.floor((153 * ((month + 9) % 12) + 2) / 5)
    return years * 365 + math.floor(years / 4) - math.floor(years / 100) + math.floor(years / 400) + days - 719468
end

-- Start and end of the window around `now`; nothing for a zone other than UTC.
local function utc_bounds(name, now)
    if sub(name, 3) ~= 'UTC' then
        return nil
    end
    local unit, day = byte(name, 1), math.floor(now / DAY)
    local first, next = day, day + 1
    if unit == 1 then
        -- The epoch was a Thursday.
        first = day - (day + 3) % 7
        next = first + 7
    elseif unit >= 2 then
        local year = 1970 + math.floor(day / 365.2425)
        if days_to(year, 1) > day then
            year = year - 1
        elseif days_to(year + 1, 1) <= day then
            year = year + 1
        end
        first, next = days_to(year, 1), days_to(year + 1, 1)
        if unit == 2 then
            local month = 1
            while month < 12 and days_to(year, month + 1) <= day do
                month = month + 1
            end
            first = days_to(year, month)
            next = month < 12 and days_to(year, month + 1) or next
        end
    end
    -- No state is older than the epoch.
    return math.max(0, first) * DAY, next * DAY
end

-- Start and end of the window around `now`, and the end of the next one.
local function utc_window(name, now)
    local first, next = utc_bounds(name, now)
    if first then
        local _, after = utc_bounds(name, next)
        return first, next, after
    end
end
