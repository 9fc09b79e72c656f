-- The owners of sessions: claimed, claimed again, released; and the wills of their clients. Each call is atomic.
--
-- broker/store/redis/keys.py describes the keys. But for the owners of durable sessions, all keys of a call are in one
-- slice. An owner is "EPOCH INCARNATION SHARD NODE USER"; of two claims the one with the greater epoch is the later one,
-- in whatever order they arrive. Epochs are microseconds (53 bits of a number last until the year 2255).
--
--   claim    KEYS wills of the claimant, owner, fence of the claimant; where sessions are stored also: the nodes
--            ARGV op, lease in s, incarnation, "SHARD NODE", client id, user, will or ""; how the keys of records of
--            durable sessions begin, and those of the workers of a node that own durable sessions
--            -> {epoch, the former owner or false}; {0, the owner} if the session is at another node and belongs to
--               another user, unless its worker is fenced. The workers of a node ask each other. If no claim is known,
--               the former owner is the worker that has the session stored, with an epoch before any other, and a user
--               that stands for any. While Redis is full it refuses the claim of a session that has no owner and is
--               not stored; to the answer to another one true is added, as the will is not stored, and has to be told
--               again. While it cannot write to its disk it takes the claim of the owner, with the epoch of the former
--               claim
--   reclaim  KEYS wills of the claimant, owner..., fence of the claimant
--            ARGV op, lease in s, incarnation, "SHARD NODE", then for each: client id, epoch, user, will or ""
--            -> for each {epoch, or 0 if another worker's claim is later; that other owner, or false}
--   release  KEYS wills of the claimant, owner...
--            ARGV op, incarnation, then for each: client id, epoch, the owner to be restored or ""
--            -> how many this worker owned
--   drop_wills  KEYS wills of the claimant
--            ARGV op, then for each: client id, epoch
--            -> how many were there
--   fence    KEYS fence of the dead worker
--            ARGV op, seconds that the fence lasts
--            -> 1; claims of the dead worker that Redis has not read yet are refused from now on
--   take_wills  KEYS wills of the dead worker, owner...
--            ARGV op, incarnation of the dead worker, then client ids
--            -> for each the will that is to be published now, or false if its client is back or there is none
-- A will is "EPOCH DELAY RECORD" in its hash, and "DELAY RECORD" in the arguments.
local op = ARGV[1]

local function text_of(epoch)
  return string.format('%.0f', epoch)
end

-- The owner under *key*: epoch, incarnation, whole text, node, user; 0 if there is none.
local function owner_of(key)
  local text = redis.call('GET', key)
  if not text then
    return 0, '', false
  end
  local epoch, incarnation, node, user = string.match(text, '^(%d+) (%S+) %d+ (%S+) (%S+)$')
  if not epoch then -- damaged, or written by another program: as if it were not there
    return 0, '', false
  end
  return tonumber(epoch), incarnation, text, node, user
end

-- The tags of session/principal.py; '*' may have, and stands for, the session of any user.
local function may_have(claimant, owner)
  return claimant == owner or claimant == '*' or owner == '*'
end

-- The worker of *node* that has the session of *client* stored, as an owner; false if none has.
local function owner_of_stored_at(client, node)
  local owners = ARGV[9] .. node
  local workers = redis.call('HKEYS', owners)
  local records = {}
  for i, incarnation in ipairs(workers) do
    records[i] = ARGV[8] .. incarnation .. ':' .. client
  end
  if #records == 0 or redis.call('EXISTS', unpack(records)) == 0 then
    return false
  end
  for i, record in ipairs(records) do
    if redis.call('EXISTS', record) == 1 then
      local shard = string.match(redis.call('HGET', owners, workers[i]), '^%d+$') or '0'
      return table.concat({ '1', workers[i], shard, node, '*' }, ' ')
    end
  end
end

-- The worker of any node that has it stored; *node*, of the claimant, may not be among the nodes yet.
local function owner_of_stored(client, node)
  local found = owner_of_stored_at(client, node)
  if found then
    return found
  end
  for _, other in ipairs(redis.call('HKEYS', KEYS[4])) do
    found = other ~= node and owner_of_stored_at(client, other)
    if found then
      return found
    end
  end
  return false
end

local function set_will(client, epoch, will, lease)
  if will == '' then
    redis.call('HDEL', KEYS[1], client)
  else
    redis.call('HSET', KEYS[1], client, text_of(epoch) .. ' ' .. will)
    redis.call('EXPIRE', KEYS[1], lease)
  end
end

-- A server that is full refuses a script memory up to its first write (store/durable/full.lua): this changes nothing.
local function write_first()
  redis.call('HDEL', KEYS[1], '')
end

-- Delete the will of *client* if it was stored with *epoch* or before; 1 if there was one.
local function drop_will(client, epoch)
  local will = redis.call('HGET', KEYS[1], client)
  if will and tonumber(string.match(will, '^%d+')) <= epoch then
    redis.call('HDEL', KEYS[1], client)
    return 1
  end
  return 0
end

-- A Redis that was stalled may read the claim of a worker after that worker has died and its wills have been published:
-- nothing would ever undo such a claim.
local DEAD = 'ERR the claimant is fenced'

if op == 'claim' then
  if redis.call('EXISTS', KEYS[3]) == 1 then
    return redis.error_reply(DEAD)
  end
  local lease, incarnation, place, client, user, will = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
  local stored, holder, former, node, owner = owner_of(KEYS[2])
  if former and not may_have(user, owner) and node ~= string.match(place, '%S+$') then
    local fence = string.sub(KEYS[3], 1, -1 - #incarnation) .. holder -- of a session that died with its worker
    if redis.call('EXISTS', fence) == 0 then
      return { 0, former }
    end
  end
  local time = redis.call('TIME')
  local epoch = math.max(stored + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
  local text = table.concat({ text_of(epoch), incarnation, place, user }, ' ')
  local refused = redis.pcall('SET', KEYS[2], text, 'EX', lease).err
  if not former and KEYS[4] then
    former = owner_of_stored(client, string.match(place, '%S+$'))
  end
  if not refused then
    set_will(client, epoch, will, lease)
    return { epoch, former }
  end
  if not former then
    return redis.call('SET', KEYS[2], text, 'EX', lease) -- which says why
  end
  -- A claim takes the place of another one, or its session takes more than the claim.
  local written = redis.pcall('HDEL', KEYS[1], '')
  if type(written) == 'table' and holder == incarnation and string.find(written.err, 'MISCONF', 1, true) then
    return { stored, former, true }
  end
  redis.call('SET', KEYS[2], text, 'EX', lease)
  set_will(client, epoch, '', lease)
  return { epoch, former, true }
end

if op == 'reclaim' then
  if redis.call('EXISTS', KEYS[#KEYS]) == 1 then
    return redis.error_reply(DEAD)
  end
  local lease, incarnation, place = ARGV[2], ARGV[3], ARGV[4]
  local answers = {}
  for i = 2, #KEYS - 1 do
    local at = 5 + (i - 2) * 4
    local client, epoch, user, will = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
    local stored, holder, text = owner_of(KEYS[i])
    local other = holder ~= incarnation and text
    if other and stored >= epoch then
      redis.call('HDEL', KEYS[1], client)
      answers[#answers + 1] = { 0, text }
    else
      epoch = math.max(epoch, stored) -- the stored one may be greater: of a claim whose answer was lost
      redis.call('SET', KEYS[i], table.concat({ text_of(epoch), incarnation, place, user }, ' '), 'EX', lease)
      set_will(client, epoch, will, lease)
      answers[#answers + 1] = { epoch, other }
    end
  end
  return answers
end

if op == 'release' then
  local incarnation = ARGV[2]
  local released = 0
  write_first()
  for i = 2, #KEYS do
    local at = 3 + (i - 2) * 3
    local client, epoch, former = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
    local stored, holder = owner_of(KEYS[i])
    if holder == incarnation and stored <= epoch then -- a later one is a claim whose answer is on its way
      if former == '' then
        redis.call('DEL', KEYS[i])
      else
        redis.call('SET', KEYS[i], former, 'KEEPTTL')
      end
      released = released + 1
    end
    drop_will(client, epoch)
  end
  return released
end

if op == 'drop_wills' then
  local dropped = 0
  for at = 2, #ARGV, 2 do
    dropped = dropped + drop_will(ARGV[at], tonumber(ARGV[at + 1]))
  end
  return dropped
end

if op == 'fence' then
  redis.call('DEL', KEYS[1]) -- a server that is full refuses a script no memory after its first write
  redis.call('SET', KEYS[1], '', 'EX', ARGV[2])
  return 1
end

if op == 'take_wills' then
  local dead = ARGV[2]
  local answers = {}
  for i = 2, #KEYS do
    local client = ARGV[1 + i]
    local will = redis.call('HGET', KEYS[1], client)
    local due = false
    if will then
      redis.call('HDEL', KEYS[1], client)
      local stored, holder = owner_of(KEYS[i])
      if stored == 0 then -- the claim was lost with the end of the log of Redis: no other worker has the session
        due = will
      elseif holder == dead and text_of(stored) == string.match(will, '^%d+') then
        redis.call('DEL', KEYS[i])
        due = will
      end
    end
    answers[#answers + 1] = due
  end
  return answers
end

return redis.error_reply('ERR claim.lua knows no ' .. tostring(op))
