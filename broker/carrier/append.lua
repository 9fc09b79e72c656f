-- Appends one record to a partition: KEYS = stream, head; ARGV = record. Returns its offset; -1: no such partition.
-- The head of a partition has `next`, the offset of the next record, and `bytes`, of all records that there have been.
-- An entry has the record, the milliseconds at which it came, and `bytes` of the head before it.
local head = redis.call('HMGET', KEYS[2], 'next', 'bytes')
if not head[1] then
    return -1
end
local time = redis.call('TIME')
-- The ids of a stream begin at 0-1, so the record at offset n has the id (n + 1)-0.
local id = string.format('%d-0', head[1] + 1)
redis.call('XADD', KEYS[1], id, 'record', ARGV[1], 'at', time[1] * 1000 + math.floor(time[2] / 1000), 'before', head[2])
redis.call('HINCRBY', KEYS[2], 'next', 1)
redis.call('HINCRBY', KEYS[2], 'bytes', #ARGV[1])
return tonumber(head[1])
