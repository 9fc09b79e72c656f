-- The offsets of the oldest and of the next record of a partition: KEYS = stream, head; -1: there is no such partition.
local next = redis.call('HGET', KEYS[2], 'next')
if not next then
    return {-1, -1}
end
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not oldest then
    return {tonumber(next), tonumber(next)}
end
return {tonumber(string.match(oldest[1], '%d+')) - 1, tonumber(next)}
