-- Whose session a client id is: claimed, claimed again, released and mourned. Each call is one step for everybody.
--
-- broker/store/keys.py says what lies under the keys. All keys of a call are in one slice. An owner is
-- "EPOCH INCARNATION SHARD NODE"; of two claims the one with the greater epoch is the later one, whatever order they
-- arrive in. Epochs are microseconds (53 bits of a number last until the year 2255).
--
--   claim    KEYS wills of the claimant, owner, mark of the dead
--            ARGV op, lease in s, incarnation, "SHARD NODE", client id, will or ""
--            -> {epoch, the former owner or false}
--   reclaim  KEYS wills of the claimant, owner..., mark of the dead
--            ARGV op, lease in s, incarnation, "SHARD NODE", then for each: client id, epoch, will or ""
--            -> for each {epoch or 0 if another's claim is later, the other owner that was there or false}
--   release  KEYS wills of the claimant, owner...
--            ARGV op, incarnation, then for each: client id, epoch, the owner that it goes back to or ""
--            -> how many were ours
--   unwill   KEYS wills of the claimant
--            ARGV op, then for each: client id, epoch
--            -> how many were there
--   bury     KEYS mark of the dead
--            ARGV op, seconds that it stays
--            -> 1; what the dead one has asked for and Redis has still to read is refused from now on
--   mourn    KEYS wills of the dead, owner...
--            ARGV op, incarnation of the dead, then client ids
--            -> for each the will that is to be published now, or false if its client is back or it is not there
-- A will is "EPOCH DELAY RECORD" in its hash, and "DELAY RECORD" in the arguments.
local op = ARGV[1]

local function text_of(epoch)
  return string.format('%.0f', epoch)
end

-- The owner under *key*: epoch, incarnation, whole text; 0 if there is none.
local function owner_of(key)
  local text = redis.call('GET', key)
  if not text then
    return 0, '', false
  end
  local epoch, incarnation = string.match(text, '^(%d+) (%S+) ')
  if not epoch then -- not ours, or damaged: as if it were not there
    return 0, '', false
  end
  return tonumber(epoch), incarnation, text
end

local function set_will(client, epoch, will, lease)
  if will == '' then
    redis.call('HDEL', KEYS[1], client)
  else
    redis.call('HSET', KEYS[1], client, text_of(epoch) .. ' ' .. will)
    redis.call('EXPIRE', KEYS[1], lease)
  end
end

-- Whether a will of *client* that was stored with *epoch*, or before, was there, and is not any more.
local function drop_will(client, epoch)
  local will = redis.call('HGET', KEYS[1], client)
  if will and tonumber(string.match(will, '^%d+')) <= epoch then
    redis.call('HDEL', KEYS[1], client)
    return 1
  end
  return 0
end

-- A Redis that stood still reads what a worker has sent it after that worker has died and been mourned: nobody would
-- ever take back what such a claim leaves.
local DEAD = 'ERR the claimant has been mourned'

if op == 'claim' then
  if redis.call('EXISTS', KEYS[3]) == 1 then
    return redis.error_reply(DEAD)
  end
  local lease, incarnation, place, client, will = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  local stored, _, former = owner_of(KEYS[2])
  local time = redis.call('TIME')
  local epoch = math.max(stored + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
  redis.call('SET', KEYS[2], text_of(epoch) .. ' ' .. incarnation .. ' ' .. place, 'EX', lease)
  set_will(client, epoch, will, lease)
  return { epoch, former }
end

if op == 'reclaim' then
  if redis.call('EXISTS', KEYS[#KEYS]) == 1 then
    return redis.error_reply(DEAD)
  end
  local lease, incarnation, place = ARGV[2], ARGV[3], ARGV[4]
  local answers = {}
  for i = 2, #KEYS - 1 do
    local at = 5 + (i - 2) * 3
    local client, epoch, will = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
    local stored, holder, text = owner_of(KEYS[i])
    local other = holder ~= incarnation and text
    if other and stored >= epoch then
      redis.call('HDEL', KEYS[1], client)
      answers[#answers + 1] = { 0, text }
    else
      epoch = math.max(epoch, stored) -- ours may be the greater one, of a claim whose answer never reached us
      redis.call('SET', KEYS[i], text_of(epoch) .. ' ' .. incarnation .. ' ' .. place, 'EX', lease)
      set_will(client, epoch, will, lease)
      answers[#answers + 1] = { epoch, other }
    end
  end
  return answers
end

if op == 'release' then
  local incarnation = ARGV[2]
  local released = 0
  for i = 2, #KEYS do
    local at = 3 + (i - 2) * 3
    local client, epoch, former = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
    local stored, holder = owner_of(KEYS[i])
    if holder == incarnation and stored <= epoch then -- a later one is a claim that was not heard of yet
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
      if stored == 0 then -- its claim was lost with the end of a log: nobody else has it
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
