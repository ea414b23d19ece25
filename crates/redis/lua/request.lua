-- Parts of the request for one key and for several: a time, and calendars.

-- The time: the server's, unless `at` is given, which only keys of tests may have. Or nothing, and the reply.
local function clock(at)
    if at then
        for i = 1, #KEYS do
            if sub(KEYS[i], 1, 8) ~= 'sg:test:' then
                return nil, { err = 'ERR invalid time argument: expected it only with keys that begin with `sg:test:`' }
            end
        end
        return tonumber(at)
    end
    local time = redis.pcall('TIME')
    if time.err then
        return nil, time
    end
    return time[1] * 1000000 + time[2]
end

-- Returns a function for the window of a calendar around a time and the end of the next one, if they are among
-- `calendars`.
local function given(calendars)
    return function(name, time)
        local place = 1
        while place < #calendars do
            local size = 2 + byte(calendars, place + 1)
            local begins = { unpack('<I7I7I7I7I7', calendars, place + size) }
            if sub(calendars, place, place + size - 1) == name then
                for i = 1, 3 do
                    if begins[i] <= time and time < begins[i + 1] then
                        return begins[i], begins[i + 1], begins[i + 2]
                    end
                end
            end
            place = place + size + 35
        end
    end
end
