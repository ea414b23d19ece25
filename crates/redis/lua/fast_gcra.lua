-- The fast path, before anything else is set up: a take under one limit of the gcra family, on a key that is new or
-- was last written under the very same limit. Any other case falls through to the rest of the script, which reads the
-- request again. The library of functions has the part below `[take]` as a function.
--
-- KEYS[1]  the key
-- ARGV[1]  the request, 36 bytes, little-endian: cost (4 bytes, at least 1), n (4) and p (6), the
--          rate N/P in lowest terms, in units per microsecond; B (4); 1 for a leaky-queue, else 0 (1);
--          and the first bytes of a state written under this limit (17: version, one, the limit).
--          Only for B*p < 2^52, and no `borrow`.
-- ARGV[2]  for tests only: the time, as in main.lua
-- reply    the debt of the key before, in ticks, from which the client computes the decision as the core does:
--          the reply takes most of a script's time. For a leaky-queue, and for more than B units, the seven
--          integers of the decision
--
-- `queue` is 2 in the library for a limit that is no leaky-queue: the reply is then always the seven integers.
--
-- Functions of Lua are called as rarely as possible, because each call takes as long as ten sums: hence `x - x % 1`
-- for the floor of x, and `x + -x % 1` for its ceiling. Ticks are 1/n microseconds.
if #ARGV[1] == 36 then
    local pcall, unpack, key = redis.pcall, struct.unpack, KEYS[1]
    local cost, n, p, limit, queue, begins = unpack('<I4I4I6I4Bc17', ARGV[1])
    local at = ARGV[2]
    -- [take]
    local bytes = pcall('GET', key)
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

    local debt, known = 0, not bytes
    -- The rest of a TAT takes as few bytes as n - 1 needs: mostly none.
    local form, length = '<c17I7', 24
    if n > 1 then
        local width = n <= 256 and 1 or n <= 65536 and 2 or n <= 16777216 and 3 or 4
        form, length = '<c17I7I' .. width, 24 + width
    end
    if bytes and #bytes == length then
        local begun, tat, part = unpack(form, bytes)
        if n == 1 then
            part = 0
        end
        if begun == begins and part < n then
            debt, known = (tat - now) * n + part, true
            if debt < 0 then
                debt = 0
            end
        end
    end

    -- Below 2^52 every sum, product and quotient here is exact.
    if known and debt < 4503599627370496 and not (at and string.sub(key, 1, 8) ~= 'sg:test:') then
        local depth = limit * p
        local new = debt + cost * p
        if new > depth then
            -- Every write sets the time to live. For a key that is only ever denied it is checked occasionally,
            -- because the check takes a tenth of the script's time.
            if now % 16 == 0 and not at and bytes and pcall('PTTL', key) == -1 then
                pcall('PEXPIREAT', key, string.format('%d', (now + debt / n) / 1000 + 1))
            end
            if queue == 0 and cost <= limit then
                return debt
            end
            local free, retry, reset = (depth - debt) / p, (new - depth) / n, debt / n
            if free < 0 then
                free = 0
            end
            if cost > limit then
                retry = -1
            end
            return { 0, limit, free - free % 1, retry + -retry % 1, reset + -reset % 1, 0, 0 }
        end

        local part = new % n
        local reset = (new - part) / n
        local tat = now + reset
        if part > 0 then
            reset = reset + 1
        end
        local unit, ends = 'PXAT', now + reset
        if at then
            unit, ends = 'PX', reset < 3600000000 and 3600000000 or reset
        end
        -- The server formats a number with 17 digits, or as an integer.
        ends = (ends + -ends % 1000) / 1000
        local done = pcall('SET', key, struct.pack(form, begins, tat, part), unit, ends)
        if done.err then
            return done
        end
        if queue == 0 then
            return debt
        end
        local free, delay = (depth - new) / p, queue == 1 and debt / n or 0
        return { 1, limit, free - free % 1, 0, reset, delay + -delay % 1, 0 }
    end
end
