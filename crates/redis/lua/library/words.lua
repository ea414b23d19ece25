-- Single arguments of functions, and how a wrong one is shown: as `crates/commands` does.

local ESCAPES = { ['\t'] = '\\t', ['\r'] = '\\r', ['\n'] = '\\n', ["'"] = "\\'", ['"'] = '\\"', ['\\'] = '\\\\' }

-- Bytes as an error shows them: printable ASCII, and cut where they are long.
local function shown(bytes)
    local text = sub(bytes, 1, 40)
    text = string.gsub(text, '.', function(one)
        local code = byte(one)
        if ESCAPES[one] then
            return ESCAPES[one]
        elseif code < 32 or code > 126 then
            return string.format('\\x%02x', code)
        end
    end)
    return #bytes > 40 and text .. '...' or text
end

-- A whole number of 0..=most, in plain decimal digits; or nil, and the error.
local function number(argument, text, most, told)
    if text == '0' or (#text <= 16 and string.find(text, '^[1-9][0-9]*$')) then
        local value = tonumber(text)
        if value <= most then
            return value
        end
    end
    return nil, 'ERR ' .. argument .. ' `' .. shown(text) .. '` is not a whole number of 0..=' .. told
end

-- How many bytes of a text are UTF-8, from its start on.
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
