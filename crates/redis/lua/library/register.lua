-- Registers the functions. While a library is loaded, `math` and `string` do not exist; therefore `setup` creates
-- everything that the functions share at the first call.

local functions

local function register(name, flags)
    redis.register_function({
        function_name = name,
        flags = flags,
        callback = function(keys, given)
            functions = functions or setup()
            return functions[name](keys, given)
        end,
    })
end

register('sg_take', {})
register('sg_peek', { 'no-writes' })
register('sg_charge', {})
register('sg_refund', {})
register('sg_reserve', {})
register('sg_hold', {})
register('sg_settle', {})
register('sg_renew', {})
register('sg_takeall', {})
register('sg_reset', { 'allow-oom' })
register('sg_info', { 'no-writes' })
