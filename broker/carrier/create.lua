-- Makes a topic: KEYS = topics, then the head of each partition; ARGV = topic, its properties, of the form
-- "PARTITIONS SECONDS BYTES", and its identity. Returns the properties that it has: those of before, if it is there
-- with as many partitions.
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found and string.match(found, '%d+') ~= string.match(ARGV[2], '%d+') then
    return found
end
for number = 2, #KEYS do
    redis.call('HSETNX', KEYS[number], 'next', 0)
    redis.call('HSETNX', KEYS[number], 'bytes', 0)
    redis.call('HSETNX', KEYS[number], 'log', ARGV[3])
end
if not found then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
return found or ARGV[2]
