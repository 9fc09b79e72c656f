-- The offsets of the oldest and of the next record of a partition, and the identity of its topic: KEYS = stream, head.
-- -1: there is no such partition.
local head = redis.call('HMGET', KEYS[2], 'next', 'log')
if not head[1] then
    return {-1, -1, ''}
end
local next = tonumber(head[1])
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
return {oldest and tonumber(string.match(oldest[1], '%d+')) - 1 or next, next, head[2]}
