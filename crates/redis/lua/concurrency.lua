-- concurrency: machine 10 of the byte form.
--
-- It has no state of its own: holds.lua counts the open holds of the key for it.

local concurrency = {}

function concurrency.read(bytes, at)
    if #bytes < at + 10 then
        return nil, EARLY
    end
    local count, period = unpack('<I4I6', bytes, at + 1)
    if count < 1 or count > 65536 or period < MIN_PERIOD or period > MAX_PERIOD then
        return nil, DOMAIN
    end
    return {
        kind = concurrency, head = sub(bytes, at, at + 10), capacity = count, period = period, counts_holds = true,
    }, at + 11
end

function concurrency.load(_, _, at)
    return at
end

function concurrency.save(limit)
    return limit.head
end

function concurrency.unused()
    return true
end

function concurrency.wait(limit, _, cost)
    return cost > limit.capacity and NEVER or 0
end

function concurrency.remaining(limit)
    return limit.capacity
end

local function concurrency_none()
    return 0
end

concurrency.reset_after, concurrency.lifetime, concurrency.used = concurrency_none, concurrency_none, concurrency_none
concurrency.charge, concurrency.refund = concurrency_none, concurrency_none

kinds[10] = concurrency

-- [library]

algorithm({
    codes = { 10 },
    names = { { 'concurrency', {} } },

    parse = function(limit)
        return pack('<BI4I6', 10, limit.count, read_period('period', limit.period))
    end,

    format = function()
        return 'concurrency'
    end,
})
