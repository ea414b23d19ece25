-- The fast path of a take under one sliding-log, before anything else is set up: on a key that was last written under
-- the very same limit, with events of weight 1 only. Any other case falls through to the rest of the script, which
-- reads the request again.
--
-- KEYS[1]  the key
-- ARGV[1]  the request, 27 bytes, little-endian: cost (4 bytes, at least 1), N (4), P (6), and the first
--          bytes of a state written under this limit (13: version, one, the limit). Not for
--          `count=all` or `keep`.
-- ARGV[2]  for tests only: the time, as in main.lua
-- reply    the seven integers of a decision
if #ARGV[1] == 27 then
    local pcall, unpack = redis.pcall, struct.unpack
    local cost, limit, period, begins = unpack('<I4I4I6c13', ARGV[1])
    local bytes = pcall('GETRANGE', KEYS[1], '0', '511')
    local at = ARGV[2]
    local now
    if at then
        now = tonumber(at)
    else
        local time = pcall('TIME')
        if time.err then
            return time
        end
        now = time[1] * 1000000 + time[2]
    end

    if #bytes > 26 and not (at and string.sub(KEYS[1], 1, 8) ~= 'sg:test:') then
        local begun, count, base, wide, heavy = unpack('<c13I4I7BB', bytes)
        local edge, newest, format, last = now - period, now + 1, '<I' .. wide, 26 + count * wide
        if begun == begins and heavy == 0 and wide > 0 and wide < 8 and count > 0 then
            if #bytes == 512 then
                -- A long log. A denial needs only its ends, if no event has expired.
                local tail = pcall('GETRANGE', KEYS[1], string.format('%d', last - wide),
                    string.format('%d', last))
                if #tail == wide then
                    newest = base + unpack(format, tail)
                end
                if base + unpack(format, bytes, 27) <= edge or count + cost <= limit
                    or (count + cost - limit) * wide > 486 then
                    bytes = pcall('GET', KEYS[1])
                end
            elseif #bytes == last then
                newest = base + unpack(format, bytes, last - wide + 1)
            end
        end
        -- Events later than now are left to the rest of the script.
        if newest <= now then
            -- The number of events that no longer count: mostly none or few.
            local gone, beyond = 0, count + 1
            if base + unpack(format, bytes, 27) <= edge then
                gone = 1
                while beyond - gone > 1 do
                    local middle = gone + beyond
                    middle = (middle - middle % 2) / 2
                    if base + unpack(format, bytes, 27 + (middle - 1) * wide) <= edge then
                        gone = middle
                    else
                        beyond = middle
                    end
                end
            end
            local live = count - gone
            local surplus = live + cost - limit
            if surplus > 0 then
                -- See fast_gcra.lua.
                if now % 16 == 0 and not at and pcall('PTTL', KEYS[1]) == -1 then
                    pcall('PEXPIREAT', KEYS[1], string.format('%d', (newest + period) / 1000 + 1))
                end
                local retry, reset = -1, newest + period - now
                if cost <= limit then
                    retry = base + unpack(format, bytes, 27 + (gone + surplus - 1) * wide) + period - now
                end
                if reset < 0 then
                    reset = 0
                end
                return { 0, limit, live < limit and limit - live or 0, retry, reset, 0, 0 }
            elseif cost == 1 and now - base < 256 ^ wide then
                local unit, ends = 'PXAT', now + period
                if at then
                    unit, ends = 'PX', period < 3600000000 and 3600000000 or period
                end
                local stored = struct.pack('<c13I4I7BB', begins, live + 1, base, wide, 0)
                    .. string.sub(bytes, 27 + gone * wide) .. struct.pack(format, now - base)
                local done =
                    pcall('SET', KEYS[1], stored, unit, (ends + -ends % 1000) / 1000)
                if done.err then
                    return done
                end
                return { 1, limit, limit - live - 1, 0, period, 0, 0 }
            end
        end
    end
end
