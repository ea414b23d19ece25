-- The functions. Each takes one key (sg_takeall several) and the arguments of the command of the same name:
--
-- FCALL sg_take    1 key policy [cost] [COST cost] [AT us]
-- FCALL sg_peek    1 key policy [cost] [COST cost] [AT us]                 also by FCALL_RO
-- FCALL sg_charge  1 key policy [cost] [COST cost] [AT us]
-- FCALL sg_refund  1 key policy [cost] [COST cost] [AT us]
-- FCALL sg_reserve 1 key policy [cost] [COST cost] [MAXWAIT us] [AT us]
--     reply: the seven integers of a decision, as main.lua returns them
-- FCALL sg_hold    1 key policy id [COST cost] [TTL us] [AT us]
-- FCALL sg_settle  1 key policy id [USED units] [AT us]
-- FCALL sg_renew   1 key policy id [TTL us] [AT us]
--     reply: likewise
-- FCALL sg_takeall n key ... policy cost ... [ID id] [TTL us] [AT us]
--     reply: the decision on all keys, followed by the index of the binding key, from 0, and the decision on each take
-- FCALL sg_reset   1 key [AT us]
--     reply: 1 if there was state, else 0
-- FCALL sg_info    1 key [AT us]                                           also by FCALL_RO
--     reply: names and values, or null: policy, reset_after_us, lifetime_us, bytes, limits, and of each
--     limit again limit, capacity, used, remaining, reset_after_us
--
-- The cost is 1 if none is given. AT, the time in microseconds since the Unix epoch, is for tests:
-- only for keys that begin with `sg:test:`.

-- A whole number of 0..=most, in plain decimal digits; or nil, and the error.
local function number(argument, text, most)
    if text == '0' or (#text <= 16 and string.find(text, '^[1-9][0-9]*$')) then
        local value = tonumber(text)
        if value <= most then
            return value
        end
    end
    return nil, string.format('ERR invalid %s `%s`: expected a whole number from 0 to %d', argument, shown(text), most)
end

local MAX_UNITS, MAX_SPAN, MAX_NOW = 4294967295, 1125899906842624, 4503599627370496

-- The options from `from` on, each at most once, in any order; or nil and the error.
local function read_options(name, key, given, from, known)
    local options = {}
    while from <= #given do
        local word = string.upper(given[from])
        local units = word == 'COST' or word == 'USED'
        local most = word == 'AT' and MAX_NOW or units and MAX_UNITS or MAX_SPAN
        if not (word == 'AT' or contains(known, word)) then
            return nil, 'ERR unknown option `' .. shown(given[from]) .. '` for ' .. name .. ': '
                .. 'expected ' .. (#known == 0 and 'none' or table.concat(known, ' or '))
        elseif word == 'AT' and sub(key, 1, 8) ~= 'sg:test:' then
            return nil, 'ERR option AT is unavailable: it is only for keys that begin with `sg:test:`'
        elseif not given[from + 1] then
            return nil, 'ERR missing value of option ' .. word
        end
        local value, wrong = given[from + 1], nil
        if word ~= 'ID' then
            value, wrong = number(word, value, most)
        end
        if not value then
            return nil, wrong
        elseif options[word] then
            return nil, 'ERR duplicate option ' .. word .. ': expected it once'
        end
        options[word] = value
        from = from + 2
    end
    return options
end

local function key_fault(key, least)
    if #key > 65536 or #key < least then
        return 'ERR invalid key: expected 1 to 65536 bytes, found ' .. #key
    end
end

local function arity(name, syntax)
    return { err = "ERR wrong number of arguments for '" .. name .. "' command; expected FCALL " .. name
        .. ' 1 key' .. syntax }
end

-- The server's time, unless the request has one; or nil and the server's error.
local function time_of(options)
    if options.AT then
        return options.AT
    end
    local time = redis.pcall('TIME')
    if time.err then
        return nil, time
    end
    return time[1] * 1000000 + time[2]
end

-- The error of a take under a policy that permits none.
local function take_fault(policy)
    for _, limit in ipairs(policy.limits) do
        if limit.counts_holds then
            return 'ERR invalid operation under a policy with `concurrency`: expected hold, settle, renew, peek or reset; '
                .. 'use hold'
        end
    end
end

local function id_fault(id)
    if #id < 1 or #id > 64 then
        return 'ERR invalid id of ' .. #id .. ' bytes: expected 1 to 64 bytes'
    end
end

-- A function that decides.
local function decision_function(operation, known)
    local name = 'sg_' .. operation
    return function(keys, given)
        if #keys ~= 1 or #given < 1 then
            return arity(name, ' policy [COST cost]' .. (#known > 1 and ' [MAXWAIT microseconds]' or ''))
        end
        local key, from, cost, wrong = keys[1], 2, nil, nil
        local second = given[2] and string.upper(given[2])
        -- A word is an option, also a misspelled one.
        if second and second ~= 'AT' and not contains(known, second) and not string.find(second, '^%a') then
            cost, wrong = number('cost', given[2], MAX_UNITS)
            if not cost then
                return { err = wrong }
            end
            from = 3
        end
        local options
        options, wrong = read_options(name, key, given, from, known)
        if options and cost and options.COST then
            wrong = 'ERR duplicate option COST: expected it once'
        end
        wrong = wrong or key_fault(key, 1)
        local policy
        if not wrong then
            policy, wrong = policy_of(given[1])
        end
        if not wrong and operation ~= 'peek' then
            wrong = take_fault(policy)
        end
        if not wrong and operation == 'reserve' then
            for _, limit in ipairs(policy.limits) do
                if limit.kind ~= gcra then
                    wrong = 'ERR reserve needs every limit to be gcra, token-bucket (refill=continuous), '
                        .. 'leaky-bucket or leaky-queue'
                end
            end
        end
        if wrong then
            return { err = wrong }
        end
        local now, failed = time_of(options)
        if not now then
            return failed
        end
        local reply = decide(key, operation, cost or options.COST or 1, options.MAXWAIT or MAX_SPAN, policy.bytes,
            now, options.AT, utc_window)
        return type(reply[2]) == 'string' and say_zone(key) or reply
    end
end

-- The lifetime of a hold under a policy; or nil and the error.
local function lifetime_of_hold(policy, ttl)
    local longest, default = 86400000000, nil
    for _, limit in ipairs(policy.limits) do
        if limit.queue then
            return nil, 'ERR invalid policy for a hold: expected one without `leaky-queue`'
        elseif limit.counts_holds then
            longest = math.min(longest, limit.period)
            default = longest
        end
    end
    if ttl and (ttl < 1000 or ttl > longest) then
        return nil, string.format('ERR invalid ttl `%d`: expected 1000 to %d microseconds', ttl, longest)
    elseif not ttl and not default then
        return nil, 'ERR missing ttl: expected 1000 to 86400000000 microseconds; only a policy with '
            .. '`concurrency` has a default'
    end
    return ttl or default
end

-- A function on a hold.
local function hold_function(operation, known)
    local name = 'sg_' .. operation
    return function(keys, given)
        if #keys ~= 1 or #given < 2 then
            return arity(name, ' policy id')
        end
        local key, id = keys[1], given[2]
        local options, wrong = read_options(name, key, given, 3, known)
        wrong = wrong or key_fault(key, 1)
        local policy, ttl
        if not wrong then
            policy, wrong = policy_of(given[1])
        end
        wrong = wrong or id_fault(id)
        if not wrong then
            ttl, wrong = lifetime_of_hold(policy, options.TTL or operation == 'settle' and 1000)
        end
        if wrong then
            return { err = wrong }
        end
        local now, failed = time_of(options)
        if not now then
            return failed
        end
        local cost = options.USED
        if operation == 'hold' then
            cost = options.COST or 1
        end
        local reply = decide(key, operation, cost, ttl, policy.bytes, now, options.AT, utc_window, id)
        return type(reply[2]) == 'string' and say_zone(key) or reply
    end
end

-- The reply on several keys: the decision on all of them, with the index of the binding key, and the decision on each take as
-- given. `places` has the place of its key in `flat`.
local function all_and_each(flat, places)
    local each, all, key = {}, { 1, 0, math.huge, 0, 0, 0, 0 }, 1
    local worst = -1
    for i, place in ipairs(places) do
        local one = {}
        for j = 1, 7 do
            one[j] = flat[7 * (place - 1) + j]
        end
        local wait = one[4] == -1 and NEVER or one[4]
        each[i] = one
        all[1] = math.min(all[1], one[1])
        if wait > worst then
            worst, all[4] = wait, one[4]
        end
        all[3], all[5], all[6] = math.min(all[3], one[3]), math.max(all[5], one[5]), math.max(all[6], one[6])
    end
    for i, one in ipairs(each) do
        if all[1] == 1 and one[3] < each[key][3] then
            key = i
        elseif all[1] == 0 and one[4] == all[4] and each[key][4] ~= all[4] then
            key = i
        end
    end
    all[2], all[7], all[8] = each[key][2], each[key][7], key - 1
    table.insert(each, 1, all)
    return each
end

-- The function on several keys.
local function take_all(keys, given)
    if #keys < 1 or #keys > 8 then
        return { err = 'ERR invalid number of keys `' .. #keys .. '`: expected 1 to 8' }
    elseif #given < 2 * #keys then
        return { err = "ERR wrong number of arguments for 'sg_takeall' command; expected FCALL sg_takeall n key ... "
            .. 'policy cost ..., a policy and a cost for each key' }
    end
    local tested = keys[1]
    for i = 2, #keys do
        tested = sub(keys[i], 1, 8) == 'sg:test:' and tested or keys[i]
    end
    local options, wrong = read_options('sg_takeall', tested, given, 2 * #keys + 1, { 'ID', 'TTL' })
    if options and options.TTL and not options.ID then
        wrong = 'ERR option TTL has no ID: expected ID and the id of a hold with it'
    elseif options and options.ID then
        wrong = id_fault(options.ID)
    end
    -- If a key is given twice, only the first take counts.
    local takes, seen, places = {}, {}, {}
    for i = 1, wrong and 0 or #keys do
        local cost, policy, ttl
        cost, wrong = number('cost', given[2 * i], MAX_UNITS)
        wrong = not cost and wrong or key_fault(keys[i], 1)
        if not wrong then
            policy, wrong = policy_of(given[2 * i - 1])
        end
        if not wrong and options.ID then
            ttl, wrong = lifetime_of_hold(policy, options.TTL)
        elseif not wrong then
            wrong = take_fault(policy)
        end
        if wrong then
            break
        end
        if not seen[keys[i]] then
            takes[#takes + 1] = { key = keys[i], cost = cost, policy = policy.bytes, ttl = ttl }
            seen[keys[i]] = #takes
        end
        places[i] = seen[keys[i]]
    end
    if wrong then
        return { err = wrong }
    end
    local now, failed = time_of(options)
    if not now then
        return failed
    end
    local flat = decide_all(takes, options.ID and 'hold' or 'take', now, options.AT, utc_window, options.ID)
    if flat.err then
        return flat
    end
    return type(flat[2]) == 'string' and say_zone(tested) or all_and_each(flat, places)
end

-- A function on the stored bytes of a key.
local function state_function(name, look)
    return function(keys, given)
        if #keys ~= 1 then
            return arity(name, '')
        end
        local options, wrong = read_options(name, keys[1], given, 1, {})
        wrong = wrong or key_fault(keys[1], 0)
        if wrong then
            return { err = wrong }
        end
        local bytes = redis.pcall('GET', keys[1])
        if type(bytes) == 'table' then
            return say_type(keys[1], bytes)
        end
        return look(keys[1], bytes, options)
    end
end

-- sg_take: most calls have a key, a policy and perhaps a cost, and need nothing else.
local take = decision_function('take', { 'COST' })

local function take_one(keys, given)
    local key, policy, cost = keys[1], policies[given[1]], given[2] or '1'
    local fast, count = policy and policy.fast, #given
    if count == 3 and cost == 'COST' then
        cost, count = given[3], 2
    end
    if fast and count <= 2 and #keys == 1 and #key > 0 and #key <= 65536 and #cost <= 9
        and string.find(cost, '^[1-9][0-9]*$') then
        local reply = fast_take(key, tonumber(cost), fast[1], fast[2], fast[3], fast[4], fast[5])
        if reply then
            return reply
        end
    end
    return take(keys, given)
end

return {
    sg_take = take_one,
    sg_peek = decision_function('peek', { 'COST' }),
    sg_charge = decision_function('charge', { 'COST' }),
    sg_refund = decision_function('refund', { 'COST' }),
    sg_reserve = decision_function('reserve', { 'COST', 'MAXWAIT' }),
    sg_hold = hold_function('hold', { 'COST', 'TTL' }),
    sg_settle = hold_function('settle', { 'USED' }),
    sg_renew = hold_function('renew', { 'TTL' }),
    sg_takeall = take_all,
    sg_reset = state_function('sg_reset', function(key, bytes)
        return bytes and redis.pcall('DEL', key) or 0
    end),
    sg_info = state_function('sg_info', function(key, bytes, options)
        local now, failed = time_of(options)
        return now and (bytes and describe(key, bytes, now)) or failed or false
    end),
}
