-- What removes, of the durable sessions of a worker, while Redis is full (removals.py). The call is atomic.
--
--   KEYS fence of the worker, its commit number
--   ARGV how many client ids of the fence it knows, the number of this call; then each command: how many words, words
--   -> client ids of the fence that it does not know; for each command 0, or its error
--
-- Four commands are none of the server: `reduce`, `index` and `release`, as the functions below take them, and `give`, as
-- the function of giving.lua does.
--
-- A server that is full refuses a script at its first command that may take memory, unless the script has written
-- before: Redis 6.2 and 7.0 and Valkey 9.1 alike. Redis 6 knows no flags of scripts (allow-oom came with Redis 7). So
-- the first command is a write that changes nothing, and takes no memory.
local WORDS = 4000 -- of a command: Lua's stack has 8000

local function reduce(first, last) -- groups of bodies, then for each how many packs are no more: see REDUCE
  if redis.call('LLEN', KEYS[1]) ~= tonumber(ARGV[1]) then
    return 0
  end
  local groups = (last - first + 1) / 2
  for i = first, first + groups - 1 do
    local left = redis.pcall('HINCRBY', ARGV[i], '', ARGV[groups + i])
    if type(left) == 'number' and left <= 0 then
      redis.call('UNLINK', ARGV[i])
    end
  end
  return 0
end

local function set_index(index, client, value) -- as SET_INDEX in index.py
  local there = redis.pcall('HEXISTS', index, client)
  return there == 1 and redis.pcall('HSET', index, client, value) or there
end

local function release(record, state, client, lease_field, field, channel, notice) -- as RELEASE_LEASE in removals.py
  for _, taken in ipairs(redis.call('LRANGE', KEYS[1], ARGV[1], -1)) do
    if taken == client or taken == '' then
      return 0
    end
  end
  local lease = redis.pcall('HGET', record, lease_field)
  if type(lease) ~= 'string' then
    return 0
  end
  redis.call('HDEL', record, lease_field)
  local held = redis.pcall('HGET', state, field)
  if type(held) == 'string' and string.sub(held, 1, 17) == 'L' .. string.sub(lease, 1, 16) then
    redis.call('HSET', state, field, 'F' .. string.sub(lease, 17))
    redis.call('PUBLISH', channel, notice)
  end
  return 0
end

local function run(first, last)
  if last - first < WORDS then
    return redis.pcall(unpack(ARGV, first, last))
  end
  local answer -- of a command with a key, and any number of elements
  for i = first + 2, last, WORDS do
    answer = redis.pcall(ARGV[first], ARGV[first + 1], unpack(ARGV, i, math.min(i + WORDS - 1, last)))
  end
  return answer
end

redis.call('LTRIM', KEYS[1], 0, -1)
local fence = redis.call('LRANGE', KEYS[1], ARGV[1], -1)
redis.call('SET', KEYS[2], ARGV[2], 'KEEPTTL')
local answers, at = {}, 3
while at <= #ARGV do
  local first, last = at + 1, at + tonumber(ARGV[at])
  local answer
  if ARGV[first] == 'reduce' then
    answer = reduce(first + 1, last)
  elseif ARGV[first] == 'index' then
    answer = set_index(unpack(ARGV, first + 1, last))
  elseif ARGV[first] == 'give' then
    answer = give({ unpack(ARGV, first + 1, last) })
  elseif ARGV[first] == 'release' then
    answer = release(unpack(ARGV, first + 1, last))
  else
    answer = run(first, last)
  end
  answers[#answers + 1] = type(answer) == 'table' and answer.err and answer or 0
  at = last + 1
end
return { fence, answers }
