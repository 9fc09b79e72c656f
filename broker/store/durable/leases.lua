-- Who reads the partitions of a log that a group of APPLICATION clients shares. Each call is atomic.
--
-- broker/store/durable/lease_scripts.py describes the keys and the values. All calls have
--   KEYS state of the group, its members, record of the session that asks, filter of the group
--   ARGV op, member, how the fields of leases of this group begin in a record
--
--   join     ...; the field of the subscription in the record; the identity of the topic and what is saved of each
--            partition at first, if the group is new: the member is one from now on
--            -> 1; 0: the group is new, and nothing was given; -1: the subscription is not stored; -2: the topic is
--            being deleted: nothing was done
--   take     ...; channel, digest of the group: the member can be sent messages, and wants its part of the partitions
--            -> {1, then partition and lease of each that it has}; {0}: it is not stored yet; {-1}: it is no member
--            ...; then partitions: Kafka has assigned these to the member, which wants them and no others
--   free     ...; channel, digest; then partition and lease of each that it does not want, of which it has read nothing
--            -> 0
--   rest     ...; channel, digest: it cannot, and others may want more
--            -> 0
--   restore  ...; then partition and lease of each that it has: Redis has lost them
--            -> {partition, ...}: those that others have by now
--   sweep    the state of a group that has no member is removed
--            -> 1: it is; 2: and there is no group of its filter any more; 0: it has a member
--   retire   KEYS ..., filter; ARGV op, -, -, identity of its topic: that is to be deleted, and no group begins in it
--            -> 1; 0: there is a group
--   move     ...; what is to be saved of each partition: the group is to go on there
--            -> 1; 0: a member has leased some of it; -1: there is no such group
--   keep     KEYS as for retire; ARGV op, -, -: the topic cannot be deleted, and groups may begin in it
--            -> 0
local op, member = ARGV[1], ARGV[2]
local state, members, record, filter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local RETIRED, DIGEST, DAY = 'retired', 16, 86400

local function partition_field(partition)
  return 'p' .. partition
end

if op == 'join' then
  -- or nobody would remove the member: the session may have ended, or be that of another worker by now
  if redis.call('HEXISTS', record, ARGV[4]) == 0 then
    return -1
  end
  local new, log = redis.call('SCARD', members) == 0, ARGV[5]
  if #ARGV == 4 and (new or redis.call('HEXISTS', state, 'p0') == 0) then
    return 0
  end
  if log and log ~= '' and redis.call('HGET', filter, RETIRED) == log then
    return -2
  end
  if new then
    -- what is there is that of a group which has ended
    redis.call('DEL', state)
  end
  redis.call('SADD', members, member)
  redis.call('HSET', filter, string.sub(ARGV[3], -DIGEST), '')
  redis.call('HDEL', filter, RETIRED)
  redis.call('PERSIST', filter)
  for i = 6, #ARGV do
    redis.call('HSETNX', state, partition_field(i - 6), 'F' .. ARGV[i])
  end
  return 1
end

if op == 'rest' then
  if redis.call('HDEL', state, 'r' .. member) == 1 then
    redis.call('PUBLISH', ARGV[4], 'F' .. ARGV[5])
  end
  return 0
end

if op == 'free' then
  for i = 6, #ARGV, 2 do
    local field, epoch = partition_field(ARGV[i]), string.sub(ARGV[i + 1], 1, 16)
    local held, lease = redis.call('HGET', state, field), redis.call('HGET', record, ARGV[3] .. ARGV[i])
    if lease and string.sub(lease, 1, 16) == epoch then
      redis.call('HDEL', record, ARGV[3] .. ARGV[i])
    end
    if held and string.sub(held, 1, 33) == 'L' .. epoch .. member then
      redis.call('HSET', state, field, 'F' .. string.sub(held, 34))
      redis.call('PUBLISH', ARGV[4], 'F' .. ARGV[5])
    end
  end
  return 0
end

if op == 'sweep' then
  if redis.call('SCARD', members) > 0 then
    return 0
  end
  redis.call('DEL', state)
  redis.call('HDEL', filter, string.sub(ARGV[3], -DIGEST))
  return redis.call('HLEN', filter) == 0 and 2 or 1
end

if op == 'move' then
  if redis.call('SCARD', members) == 0 then
    return -1
  end
  for i = 4, #ARGV do
    if string.sub(redis.call('HGET', state, partition_field(i - 4)) or '', 1, 1) == 'L' then
      return 0
    end
  end
  for i = 4, #ARGV do
    redis.call('HSET', state, partition_field(i - 4), 'F' .. ARGV[i])
  end
  return 1
end

if op == 'retire' then
  if redis.call('HLEN', filter) > redis.call('HEXISTS', filter, RETIRED) then
    return 0
  end
  redis.call('HSET', filter, RETIRED, ARGV[4])
  redis.call('EXPIRE', filter, DAY)
  return 1
end

if op == 'keep' then
  redis.call('HDEL', filter, RETIRED)
  return 0
end

if op == 'restore' then
  local lost = {}
  redis.call('SADD', members, member)
  for i = 4, #ARGV, 2 do
    local partition, lease = ARGV[i], ARGV[i + 1]
    local present = redis.call('HGET', state, partition_field(partition))
    local mine = 'L' .. string.sub(lease, 1, 16) .. member
    if present and string.sub(present, 1, 33) ~= mine then
      redis.call('HDEL', record, ARGV[3] .. partition)
      lost[#lost + 1] = partition
    else
      redis.call('HSET', state, partition_field(partition), mine .. string.sub(lease, 17))
      redis.call('HSET', record, ARGV[3] .. partition, lease)
    end
  end
  return lost
end

if op ~= 'take' then
  return redis.error_reply('ERR leases.lua knows no ' .. tostring(op))
end

if redis.call('SISMEMBER', members, member) == 0 then
  return { -1 }
end
if redis.call('EXISTS', record) == 0 then
  return { 0 }
end
redis.call('HSET', state, 'r' .. member, '1')
local fields = redis.call('HGETALL', state)
local total, ready, free, held = 0, {}, {}, { [member] = {} }
local count_of_ready = 0
for i = 1, #fields, 2 do
  local kind, value = string.sub(fields[i], 1, 1), fields[i + 1]
  if kind == 'r' and redis.call('SISMEMBER', members, string.sub(fields[i], 2)) == 0 then
    redis.call('HDEL', state, fields[i]) -- its worker has died, and its session was damaged
  elseif kind == 'r' then
    ready[string.sub(fields[i], 2)] = true
    count_of_ready = count_of_ready + 1
  elseif kind == 'p' then
    total = total + 1
    local partition = tonumber(string.sub(fields[i], 2))
    if string.sub(value, 1, 1) == 'F' then
      free[#free + 1] = partition
    else
      local holder = string.sub(value, 18, 33)
      held[holder] = held[holder] or {}
      table.insert(held[holder], partition)
    end
  end
end
table.sort(free)

local assigned = {}
for i = 6, #ARGV do
  assigned[tonumber(ARGV[i])] = true
end
local by_kafka = #ARGV > 5

-- Each ready member has `least` partitions, and `extra` of them have one more.
local least = math.floor(total / count_of_ready)
local extra = total % count_of_ready
local mine = held[member]
for other in pairs(ready) do
  if other ~= member and held[other] and #held[other] > least then
    extra = extra - 1
  end
end
local most = least + (extra > 0 and 1 or 0)

local time = redis.call('TIME')
for _, partition in ipairs(free) do
  if not by_kafka and #mine >= most then
    break
  end
  if not by_kafka or assigned[partition] then
    -- never below a former one, also if Redis has lost that
    local epoch = math.max(tonumber(redis.call('HGET', state, 'e') or 0) + 1, time[1] * 1000000 + time[2])
    redis.call('HSET', state, 'e', string.format('%.0f', epoch))
    local lease = string.format('%016x', epoch)
    local saved = string.sub(redis.call('HGET', state, partition_field(partition)), 2)
    redis.call('HSET', state, partition_field(partition), 'L' .. lease .. member .. saved)
    redis.call('HSET', record, ARGV[3] .. partition, lease .. saved)
    table.insert(mine, partition)
  end
end

-- Too few, or others have too many: ask those that have the most. What members release that are not ready any more is
-- told by itself.
local wanted, asked = least - #mine, {}
while not by_kafka do
  local largest
  for other in pairs(ready) do
    local theirs = held[other]
    if other ~= member and theirs and #theirs > least and (not largest or #theirs > #held[largest]) then
      largest = other
    end
  end
  if not largest or (wanted <= 0 and #held[largest] <= least + 1) then
    break
  end
  asked[largest] = asked[largest] or {}
  table.insert(asked[largest], table.remove(held[largest]))
  wanted = wanted - 1
end
for other, partitions in pairs(asked) do
  redis.call('PUBLISH', ARGV[4], 'A' .. ARGV[5] .. other .. table.concat(partitions, ' '))
end

local answer = { 1 }
for _, partition in ipairs(mine) do
  local lease = redis.call('HGET', record, ARGV[3] .. partition)
  local holds = redis.call('HGET', state, partition_field(partition))
  if lease and string.sub(holds, 2, 17) == string.sub(lease, 1, 16) then
    answer[#answer + 1] = partition
    answer[#answer + 1] = lease
  end
end
return answer
