-- The byte form of a key's state (docs/state-format.md): bytes in, a list of limits out.
--
-- A limit is a table: its parameters, its state, and its `kind`, which has the functions of its
-- machine. `kinds` holds them by the number of the machine.

local unpack, pack, sub, byte = struct.unpack, struct.pack, string.sub, string.byte

local MIN_PERIOD, MAX_PERIOD = 1000, 31622400000000 -- 1ms and 366d, in microseconds
local EARLY = 'it ends too early'
local FOREIGN = 'a value that Sluicegate did not write'
local DOMAIN = 'a limit has a parameter outside its domain'

-- The greatest first byte that a newer version may write.
local LAST_VERSION = 7

local kinds = {}

-- The valid flags of each machine, as a sum: any sum up to it consists of valid flags.
local FLAGS = { 16, 16, 16, 0, 16, 48, 16, 48, 16, 0 }

-- Loads the machines that the policy of this script does not use.
local others

-- Loads the holds (holds.lua): the table of their functions.
local with_holds

-- The limit at `at`, without its state, and the position behind it.
local function read_limit(bytes, at)
    local head = byte(bytes, at)
    if not head then
        return nil, EARLY
    end
    local machine = head % 16
    local flags, known = head - machine, FLAGS[machine]
    if not known then
        return nil, 'a limit is of no known algorithm'
    elseif flags > known then
        return nil, 'a limit has an unknown flag'
    end
    if not kinds[machine] then
        others()
    end
    return kinds[machine].read(bytes, at, machine, flags)
end

-- The fault in the header of `bytes`; nil if there is none.
local function read_fault(bytes)
    local version, count = byte(bytes, 1, 2)
    if not version or version < 2 or version > LAST_VERSION then
        return FOREIGN
    elseif version > 4 then
        return nil, version
    elseif version == 3 then
        return 'its version 3 was never released'
    elseif not count then
        return EARLY
    elseif count < 1 or count > 8 then
        return 'its number of limits is not 1 to 8'
    end
end

-- Sets the position of the open holds of a key (`limits.rest`), if it has any; returns the fault if bytes follow its
-- end.
local function note_rest(limits, bytes, at)
    if at <= #bytes then
        if byte(bytes, 1) ~= 4 then
            return 'it goes on after its end'
        end
        limits.rest = at
    end
end

-- The limits in `bytes`, with their states.
local function read_all(bytes)
    local limits, at = {}, 3
    for i = 1, byte(bytes, 2) do
        local limit, next = read_limit(bytes, at)
        if not limit then
            return nil, next
        end
        local fault
        at, fault = limit.kind.load(limit, bytes, next)
        fault = fault or (limit.kind.fault and limit.kind.fault(limit))
        if fault then
            return nil, fault
        end
        if limit.kind.drop_gone then
            limit.kind.drop_gone(limit)
        end
        limits[i] = limit
    end
    local fault = note_rest(limits, bytes, at)
    if fault then
        return nil, fault
    end
    return limits
end

-- Loads the states of `bytes` into `limits` if they were written under the very same policy. Returns whether they
-- were, and the fault in them.
local function load_same(limits, bytes)
    local at, count = 3, #limits
    if byte(bytes, 2) ~= count then
        return false
    end
    for i = 1, count do
        local head = limits[i].head
        if sub(bytes, at, at + #head - 1) ~= head then
            return false
        end
        local fault
        at, fault = limits[i].kind.load(limits[i], bytes, at + #head)
        if not at then
            return true, fault
        end
        if limits[i].kind.drop_gone then
            limits[i].kind.drop_gone(limits[i])
        end
    end
    return true, note_rest(limits, bytes, at)
end
