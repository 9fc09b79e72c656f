-- Deletes a topic: KEYS = topics; ARGV = topic, its identity or "" for whichever it has, and what is in the keys of its
-- partitions: before the number, and behind it in that of the records and of the head. Returns 1: there is no such
-- topic now; 0: the one of this name has another identity, and stays.
local found = redis.call('HGET', KEYS[1], ARGV[1])
if not found then
    return 1
end
local function key(number, kind)
    return ARGV[3] .. number .. ARGV[kind]
end
-- A topic whose heads are gone is none any more: Redis has lost a part of its data, or somebody has deleted them.
local log = redis.call('HGET', key(0, 5), 'log')
if ARGV[2] ~= '' and log and log ~= ARGV[2] then
    return 0
end
for number = 0, tonumber(string.match(found, '%d+')) - 1 do
    redis.call('DEL', key(number, 4), key(number, 5))
end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
