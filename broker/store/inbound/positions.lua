-- Who dispatches the partitions of the inbound backbone, and how far they have come. Each call is atomic.
--
-- KEYS[1]  the hash of a node: owner/NUMBER -> incarnation, position/NUMBER, begun/NUMBER (store/inbound/positions.py)
-- ARGV     a word, and what follows it
--   begin  numbers of partitions, each with a position: it is stored where there is none yet
--   claim  the incarnation of a worker; how many others live, and their incarnations; numbers of partitions. Returns
--          for each number what the worker now owns, {position, begun}; {} if a worker that lives has it; {''} if it
--          has no position
--   save   the incarnation of a worker; then for each partition its number, position, begun, and 1 if it is to be given
--          up. Returns the numbers of those that it does not own, of which nothing is stored. A partition without an
--          owner and a position is that of the worker: this hash was lost
local hash, word = KEYS[1], ARGV[1]

if word == 'begin' then
  for at = 2, #ARGV, 2 do
    redis.call('HSETNX', hash, 'position/' .. ARGV[at], ARGV[at + 1])
  end
  return {}
end

local me = ARGV[2]
local found = {}

if word == 'claim' then
  local living = {}
  local others = tonumber(ARGV[3])
  for at = 4, 3 + others do
    living[ARGV[at]] = true
  end
  for at = 4 + others, #ARGV do
    local number = ARGV[at]
    local owner = redis.call('HGET', hash, 'owner/' .. number)
    local position = redis.call('HGET', hash, 'position/' .. number)
    if not position then
      found[#found + 1] = { '' }
    elseif not (owner and owner ~= me and living[owner]) then
      redis.call('HSET', hash, 'owner/' .. number, me)
      found[#found + 1] = { position, redis.call('HGET', hash, 'begun/' .. number) or '0' }
    else
      found[#found + 1] = {}
    end
  end
  return found
end

for at = 3, #ARGV, 4 do
  local number = ARGV[at]
  local owner = redis.call('HGET', hash, 'owner/' .. number)
  if owner == me or not (owner or redis.call('HGET', hash, 'position/' .. number)) then
    redis.call('HSET', hash, 'position/' .. number, ARGV[at + 1], 'begun/' .. number, ARGV[at + 2])
    if ARGV[at + 3] == '1' then
      redis.call('HDEL', hash, 'owner/' .. number)
    else
      redis.call('HSET', hash, 'owner/' .. number, me)
    end
  else
    found[#found + 1] = number
  end
end
return found
