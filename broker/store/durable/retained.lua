-- Changes of retained messages: of two changes of a topic the one with the greater stamp wins, in whatever order they
-- come. Each call is atomic.
--
-- KEYS[1]  the hash of a slice: topic -> value (store/durable/retained_value.py); a value begins with its stamp
-- KEYS[2]  the hash with what could not be read
-- ARGV     for each change three words, an operation, a topic and
--   put      a value: a message, or a deletion that is remembered
--   delete   the stamp of a deletion that need not be remembered
--   forget   the stamp of a message that has expired, or of a deletion that need not be remembered any more
--   aside    the beginning of a value that cannot be read, as many bytes of it as a stamp has: it is kept apart
--
-- A key of another type is moved out of the way. Bytes are compared by their numbers: `<` of two strings depends on the
-- locale of the server.
local STAMP = 12 -- bytes
local slice, aside = KEYS[1], KEYS[2]

local function newer(one, other)
  for i = 1, STAMP do
    local a, b = one:byte(i), other:byte(i)
    if a ~= b then
      return (a or -1) > (b or -1)
    end
  end
  return false
end

local kind = redis.call('TYPE', slice).ok
if kind ~= 'hash' and kind ~= 'none' then
  redis.call('RENAME', slice, aside .. ':key')
end

for i = 1, #ARGV, 3 do
  local op, topic, word = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local stored = redis.call('HGET', slice, topic)
  if op == 'put' then
    if not stored or newer(word, stored) then
      redis.call('HSET', slice, topic, word)
    end
  elseif stored then
    local stamp = stored:sub(1, STAMP)
    if op == 'aside' and stamp == word then
      redis.call('HDEL', slice, topic)
      redis.pcall('HSET', aside, topic, stored) -- refused by a server that is full: it is in the way even so
    elseif op == 'forget' and stamp == word or op == 'delete' and newer(word, stamp) then
      redis.call('HDEL', slice, topic)
    end
  end
end
return #ARGV / 3
