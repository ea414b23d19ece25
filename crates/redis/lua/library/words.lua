-- Single arguments of functions, and the form of an invalid one in errors, as in `crates/commands`.

-- A whole number of 0..=most, in plain decimal digits; or nil, and the error.
local function number(argument, text, most, unit)
    if text == '0' or (#text <= 16 and string.find(text, '^[1-9][0-9]*$')) then
        local value = tonumber(text)
        if value <= most then
            return value
        end
    end
    return nil, string.format('ERR invalid %s `%s`: expected a whole number%s from 0 to %d', argument, shown(text),
        unit or '', most)
end

-- In lower case, without `-`, `_` and spaces.
local function plain_word(word)
    return string.lower((string.gsub(word, '[-_ ]', '')))
end

-- Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
local function edits(a, b)
    local before, last = {}, {}
    for j = 0, #b do
        last[j] = j
    end
    for i = 1, #a do
        local row = { [0] = i }
        for j = 1, #b do
            local least = last[j - 1] + (byte(a, i) == byte(b, j) and 0 or 1)
            least = math.min(least, last[j] + 1, row[j - 1] + 1)
            if i > 1 and j > 1 and byte(a, i) == byte(b, j - 1) and byte(a, i - 1) == byte(b, j) then
                least = math.min(least, before[j - 2] + 1)
            end
            row[j] = least
        end
        before, last = last, row
    end
    return last[#b]
end

-- The word of `known` that `word` probably means, or nothing. As `core` finds it.
local function closest(word, known)
    word = plain_word(word)
    if #word < 1 or #word > 32 then
        return
    end
    local best, least
    for i = 1, #known do
        local other = plain_word(known[i])
        local count = edits(word, other)
        if count <= math.min(2, math.max(1, math.floor(#other / 3))) and (not least or count < least) then
            best, least = known[i], count
        end
    end
    return best
end

-- The number of bytes of a text that are valid UTF-8, from its start.
local function utf8_length(text)
    local at, size = 1, #text
    while at <= size do
        local a, b, c, d = byte(text, at, at + 3)
        local function follows(one, low, high)
            return one and one >= (low or 128) and one <= (high or 191)
        end
        if a < 128 then
            at = at + 1
        elseif a >= 194 and a <= 223 and follows(b) then
            at = at + 2
        elseif a >= 224 and a <= 239 and follows(b, a == 224 and 160, a == 237 and 159) and follows(c) then
            at = at + 3
        elseif a >= 240 and a <= 244 and follows(b, a == 240 and 144, a == 244 and 143)
            and follows(c) and follows(d) then
            at = at + 4
        else
            break
        end
    end
    return at - 1
end

-- A part of a policy's text for an error, cut after forty characters.
local function quoted(text)
    local count = 0
    for at = 1, #text do
        local code = byte(text, at)
        if code < 128 or code > 191 then
            count = count + 1
            if count > 40 then
                return '`' .. sub(text, 1, at - 1) .. '\226\128\166`'
            end
        end
    end
    return '`' .. text .. '`'
end
