-- Migration of a key's state to another policy: usage carries over.

-- Migrates the states of `old` limits to `limits`. Returns whether the policy has changed, or, if the pairs of limits
-- depend on a calendar that was not sent, nil and the old limit with that calendar.
local function migrate_state(old, limits, now, find_window)
    local function rule(limit)
        return limit.kind.rule and limit.kind.rule(limit) or limit.head
    end

    local same = #old == #limits
    for i = 1, #old do
        same = same and rule(old[i]) == rule(limits[i])
    end
    if same then
        -- Only names differ.
        for i = 1, #old do
            limits[i].kind.load(limits[i], old[i].kind.save(old[i]), #old[i].head + 1)
        end
        return false
    end

    -- The period of a calendar is the length of its window around now, with which one that begins later may be replaced.
    local function period(limit)
        return limit.period or limit.next - limit.first
    end
    for i = 1, #old do
        for j = 1, #limits do
            if old[i].calendar and limits[j].kind == old[i].kind
                and (limits[j].unit ~= old[i].unit or old[i].start > now) and not find_window(old[i]) then
                return nil, old[i]
            end
        end
    end

    -- Limits that count holds have no state, and are not paired.
    local sources, taken, stateful = {}, {}, 0
    for i = 1, #limits do
        stateful = stateful + (limits[i].counts_holds and 0 or 1)
    end
    for i = 1, #old do
        taken[i] = old[i].counts_holds
        stateful = stateful - (old[i].counts_holds and 0 or 1)
    end
    local function pass(fits)
        for i = 1, #limits do
            for j = 1, #old do
                if not sources[i] and not taken[j] and not limits[i].counts_holds and fits(old[j], limits[i]) then
                    sources[i], taken[j] = old[j], true
                end
            end
        end
    end
    pass(function(a, b)
        return rule(a) == rule(b)
    end)
    pass(function(a, b)
        return a.kind == b.kind and ((a.unit and a.unit == b.unit) or period(a) == period(b))
    end)
    pass(function(a, b)
        return a.kind == b.kind
    end)

    -- Every additional log begins with the events of the longest old log.
    local longest
    for i = 1, #old do
        if old[i].kind == kinds[8] and (not longest or old[i].period > longest.period) then
            longest = old[i]
        end
    end
    local left = 1
    for i = 1, #limits do
        if not sources[i] and limits[i].kind == kinds[8] then
            sources[i] = longest
        end
        if not sources[i] and not limits[i].counts_holds and stateful == 0 then
            while taken[left] do
                left = left + 1
            end
            sources[i] = old[left]
            left = left + 1
        end
    end

    for i = 1, #limits do
        local limit, source = limits[i], sources[i]
        if source and not source.kind.unused(source) then
            if source.kind == limit.kind then
                limit.kind.migrate(limit, source, now)
            else
                local at = source.kind.decides_at and source.kind.decides_at(source, now) or now
                limit.kind.with_used(limit, at, source.kind.used(source, now))
            end
            -- A time that is later than now may be a period or more later for this limit.
            limit.kind.refund(limit, now, 0)
        end
    end
    return true
end
